"""Findings as SARIF 2.1.0, which code hosts and editors show beside the code they are about."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from undertow.schema import Diagnosis, Finding, Severity, SourcePlace
from undertow.schema.codes import CODES, family_of
from undertow.views.source_excerpt import remark

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {
    Severity.CRITICAL: "error",
    Severity.SEVERE: "error",
    Severity.MODERATE: "warning",
    Severity.MILD: "note",
    Severity.INFO: "note",
}


def to_sarif(diagnosis: Diagnosis, findings: Sequence[Finding], command: Sequence[str] = ()) -> dict[str, Any]:
    """`command` is what was run: a finding whose line is not known is about the script in it."""
    codes = sorted({finding.code for finding in findings})
    path = next((Path(word) for word in command if word.endswith(".py")), None)
    script = None if path is None else _uri(path)
    driver = {"name": "Undertow", "version": diagnosis.undertow, "rules": [_rule(code) for code in codes]}
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"undertow/{diagnosis.run}"},
        "results": [_result(finding, codes.index(finding.code), script) for finding in findings],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: str) -> dict[str, Any]:
    name = CODES[code]
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in name.split("-")),
        "shortDescription": {"text": name.replace("-", " ")},
        "help": {"text": f"undertow explain {code}"},
        "properties": {"tags": [family_of(code)]},
    }


def _result(finding: Finding, rule: int, script: str | None) -> dict[str, Any]:
    advice = f" {finding.remedies[0].what}" if finding.remedies else ""
    places = [_physical(place) for place in finding.source]
    location: dict[str, Any] = {}
    if places:
        location["physicalLocation"] = places[0]
    elif script is not None:
        location["physicalLocation"] = {"artifactLocation": {"uri": script}}
    if finding.layers:
        location["logicalLocations"] = [{"fullyQualifiedName": layer, "kind": "module"} for layer in finding.layers]
    related = [
        {"physicalLocation": physical, "message": {"text": remark(place)}}
        for physical, place in zip(places[1:], finding.source[1:])
    ]
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"Step {finding.first_step}: {finding.summary}{advice}"},
        "locations": [location] if location else [],
        # The same fault in the same layer is the same alert, whatever the step and the run.
        "partialFingerprints": {"finding/v1": f"{finding.code}:{finding.layers[0] if finding.layers else ''}"},
        "properties": {
            "severity": str(finding.severity),
            "confidence": finding.confidence,
            "firstStep": finding.first_step,
            "lastStep": finding.last_step,
            "ongoing": finding.ongoing,
        },
        **({"relatedLocations": related} if related else {}),
    }


def _physical(place: SourcePlace) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": place.line, "endLine": place.end_line}
    if place.code:
        region["snippet"] = {"text": place.code}
    return {"artifactLocation": {"uri": _uri(Path(place.file))}, "region": region}


def _uri(path: Path) -> str:
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
