"""Findings in the form that code hosts read."""

from __future__ import annotations

import json
from typing import Any

from undertow.schema import Diagnosis, Finding, Health, Remedy, Severity, StepRange
from undertow.schema.codes import CODES
from undertow.show.report.sarif import to_sarif


def finding(code: str, severity: Severity, *layers: str) -> Finding:
    remedy = Remedy("lower-rate", "Lower the rate.", "lr=1e-3", "slower")
    return Finding(code, CODES[code], severity, layers, 3, 5, 9, True, 0.9, "It fell apart.", (), (remedy,))


def sarif(*findings: Finding, command: tuple[str, ...] = ()) -> dict[str, Any]:
    diagnosis = Diagnosis("0.1.0", "example", StepRange(0, 9, 10), Health.PROBLEMS, None, "story", findings)
    document = json.loads(json.dumps(to_sarif(diagnosis, findings, command)))
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    return run


def test_every_result_leads_to_its_rule() -> None:
    run = sarif(
        finding("OPT001", Severity.SEVERE),
        finding("GRD003", Severity.MODERATE, "encoder.0.weight", "encoder.1.weight"),
        finding("OPT001", Severity.INFO),
    )
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["GRD003", "OPT001"]
    assert [result["level"] for result in run["results"]] == ["error", "warning", "note"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"] == "Step 3: It fell apart. Lower the rate."
    (place,) = run["results"][1]["locations"]
    assert [layer["fullyQualifiedName"] for layer in place["logicalLocations"]] == [
        "encoder.0.weight",
        "encoder.1.weight",
    ]


def test_the_script_is_the_place_when_it_is_known() -> None:
    one = finding("OPT001", Severity.SEVERE)
    assert sarif(one)["results"][0]["locations"] == []
    for word, address in (("my train.py", "my%20train.py"), ("/home/me/train.py", "file:///home/me/train.py")):
        (place,) = sarif(one, command=(word, "--steps", "3"))["results"][0]["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == address


def test_the_same_fault_is_the_same_alert_at_any_step() -> None:
    first, again, other = (finding("GRD003", Severity.SEVERE, layer) for layer in ("a", "a", "b"))
    prints = [result["partialFingerprints"]["finding/v1"] for result in sarif(first, again, other)["results"]]
    assert prints[0] == prints[1] != prints[2]


def test_a_healthy_run_has_no_results() -> None:
    run = sarif()
    assert run["results"] == run["tool"]["driver"]["rules"] == []
