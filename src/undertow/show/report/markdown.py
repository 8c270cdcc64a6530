"""The diagnosis as Markdown, for an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from undertow.schema.findings import Diagnosis, Finding
from undertow.views.places import where
from undertow.views.wording import GLYPHS, cost, evidence_line, headline, percent, when


def to_markdown(diagnosis: Diagnosis, tensors: Sequence[str] = ()) -> str:
    verdict, extent = headline(diagnosis)
    parts = [f"## {verdict}", _escaped(extent), _escaped(diagnosis.story)]
    parts += [_section(finding, tensors) for finding in diagnosis.findings]
    if diagnosis.coverage.reasons:
        parts.append("\n".join(f"- {_escaped(reason)}" for reason in diagnosis.coverage.reasons))
    parts.append(f"Cost of watching: {cost(diagnosis.overhead)}.")
    return "\n\n".join(parts) + "\n"


def _section(finding: Finding, tensors: Sequence[str]) -> str:
    lines = [
        f"### {GLYPHS[finding.severity]} {finding.severity}: {finding.code} {finding.name}",
        _escaped(finding.summary),
        _follows(finding) + f"- **When:** {when(finding)}; confidence {percent(finding.confidence, 0)}\n"
        f"- **Where:** {_escaped(where(finding.layers, tensors, 12))}",
    ]
    if finding.evidence:
        lines.append("\n".join(f"- {_escaped(evidence_line(evidence))}" for evidence in finding.evidence))
    for remedy in finding.remedies:
        lines.append(
            f"**Try:** {_escaped(remedy.what)}\n\n```python\n{remedy.how}\n```\n\nRisk: {_escaped(remedy.risk)}"
            + (f" Not when: {_escaped(remedy.when_not)}" if remedy.when_not else "")
        )
    return "\n\n".join(lines)


def _follows(finding: Finding) -> str:
    return "" if finding.follows_from is None else f"- **Follows from:** {finding.follows_from}\n"


def _escaped(text: str) -> str:
    """Layer paths come from the user's model: they must not become formatting."""
    return re.sub(r"([\\`*_<>\[\]|])", r"\\\1", text)
