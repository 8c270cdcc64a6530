"""The report on one screen: whatever was found, 80 columns and 24 rows are enough."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.console import Console

from undertow.explain.diagnosis import diagnose
from undertow.explain.traits import UNCLEAR, traits_of
from undertow.schema import Diagnosis, Evidence, Finding, Layer, LayerKind, LayerTable, RunFacts, Severity, StepRange
from undertow.schema.codes import CODES
from undertow.show.report.text import report

LAYERS = LayerTable.of(
    Layer(f"blocks.{block}.{part}.weight", kind=LayerKind.WEIGHT, group=f"blocks.{block}.{part}")
    for block in range(12)
    for part in ("attention.projection", "feed_forward.expand", "feed_forward.shrink")
)


def found(code: str, first: int = 3, severity: str = "severe", **more: Any) -> Finding:
    facts: dict[str, Any] = {
        "layers": tuple(LAYERS.paths[:5]), "detected_step": first + 4, "last_step": 90, "ongoing": True,
        "confidence": 0.95,
        "summary": f"{code} says of blocks.0.attention.projection and 7 other layers: all is ill since step {first}.",
        "evidence": (Evidence("gradient_norm", LAYERS[0], 1.2345e-9, 3.1e-4, "the norm of the gradient beside the "
                              "median of those of the other layers at the same steps"),),
        **more,
    }  # fmt: skip
    return Finding(code, CODES[code], Severity(severity), first_step=first, **facts)


def judged(*findings: Finding, **more: Any) -> Diagnosis:
    facts = RunFacts(
        undertow="0", overhead_fraction=0.012, overhead_seconds_per_step=0.0023, bytes_per_step=4100.0,
        optimizers=[{"type": "AdamW", "groups": [{"lr": 0.3, "betas": [0.9, 0.95], "weight_decay": 0.1}]}],
        reasons=["an optimizer holds 2 tensors that belong to no watched model"],
    )  # fmt: skip
    return diagnose(
        findings, run="an-ordinary-name", facts=facts, layers=LAYERS, steps=StepRange(0, 199, 200), **more
    )  # fmt: skip


def lines(diagnosis: Diagnosis, width: int = 80, **more: Any) -> list[str]:
    console = Console(width=width, height=24, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(report(diagnosis, tensors=LAYERS.paths, **more))
    return captured.get().splitlines()


@pytest.mark.parametrize("code", sorted(CODES))
@pytest.mark.parametrize("severity", ["mild", "critical"])
def test_any_finding_fits(code: str, severity: str) -> None:
    diagnosis = judged(found(code, severity=severity))
    text = lines(diagnosis)
    assert len(text) <= 23
    assert max(map(len, text)) <= 80
    whole = "\n".join(text)
    for label in ("What", "When", "Where", "Why", "Cost", "More"):
        assert f"\n{label:<7}" in whole, whole
    (finding,) = diagnosis.findings
    if finding.remedies:
        assert "".join(finding.remedies[0].how.split()) in "".join(whole.split())
    assert (UNCLEAR in diagnosis.story) == (not traits_of(diagnosis.findings[0]).meaning and severity == "critical")


TEN = ["OPT007", "UPD001", "ACT001", "GRD004", "NUM002", "NUM001", "NUM003", "OPT001", "GRD005", "UPD003"]


def test_ten_findings_the_first_in_full_the_others_one_line_each() -> None:
    variants = {"UPD003": "missing-from-optimizer"}
    diagnosis = judged(*(found(code, place, variant=variants.get(code, "")) for place, code in enumerate(TEN)))
    text = lines(diagnosis)
    assert len(text) <= 23
    others = [line for line in text if "■ severe" in line and not line.startswith("What")]
    more = re.search(r"^More   undertow explain \w+   or add --details for (\d+) more findings", text[-1])
    assert more is not None
    assert len(others) + int(more[1]) == 9
    assert len(others) >= 4
    assert any("follows from" in line for line in others)
    assert diagnosis.findings[0].remedies[0].how.splitlines()[0] in "\n".join(text)


def test_symptoms_are_marked_and_details_show_all() -> None:
    diagnosis = judged(found("GRD004", 5), found("ACT001", 2), found("LSS002", 0, layers=()))
    text = lines(diagnosis)
    assert any("GRD004 zero-gradient, follows from LSS002, step 5" in line for line in text)
    whole = "\n".join(lines(diagnosis, details=True))
    assert all(f"{finding.code} {finding.name}" in whole for finding in diagnosis.findings)
    assert "led to GRD004" in whole
    assert "Not when: " in whole


def test_ten_thousand_layers_fit() -> None:
    table = LayerTable.of(
        Layer(f"layers.{i}.weight", kind=LayerKind.WEIGHT, group=f"layers.{i}") for i in range(10_000)
    )
    finding = found("GRD004", layers=tuple(table.paths[:9_000]))
    diagnosis = diagnose([finding], run="deep", facts=RunFacts(), layers=table, steps=StepRange(0, 9, 10))
    console = Console(width=80, height=24, color_system=None, markup=False)
    with console.capture() as captured:
        console.print(report(diagnosis, tensors=table.paths))
    text = captured.get().splitlines()
    assert len(text) <= 23
    assert any("layers.0–8999 (9,000 tensors)" in line for line in text)


@pytest.mark.parametrize("width", [20, 40, 200])
def test_other_widths_lose_nothing_that_matters(width: int) -> None:
    whole = "\n".join(lines(judged(found("UPD001"), found("ACT001")), width))
    assert "UPD001" in whole
    assert "Cost" in whole
    assert max(map(len, whole.splitlines())) <= width
