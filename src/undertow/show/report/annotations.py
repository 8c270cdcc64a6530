"""Findings as annotations of a GitHub workflow: each beside the line it points at."""

from collections.abc import Iterator, Sequence

from undertow.schema import Diagnosis, Finding, Severity

_LEVELS = {Severity.CRITICAL: "error", Severity.SEVERE: "error", Severity.MODERATE: "warning"}


def to_annotations(diagnosis: Diagnosis, findings: Sequence[Finding] | None = None) -> str:
    return "".join(f"{line}\n" for line in _lines(diagnosis.findings if findings is None else findings))


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        properties = {"title": f"{finding.code} {finding.name}"}
        if finding.source:
            place = finding.source[0]
            properties = {"file": place.file, "line": str(place.line), "endLine": str(place.end_line)} | properties
        advice = f" {finding.remedies[0].what}" if finding.remedies else ""
        listed = ",".join(f"{name}={_escaped(value, in_property=True)}" for name, value in properties.items())
        yield f"::{_LEVELS.get(finding.severity, 'notice')} {listed}::{_escaped(finding.summary + advice)}"


def _escaped(text: str, in_property: bool = False) -> str:
    """As the runner's own tools do: a message is one line, and a property ends at a comma or a colon."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text
