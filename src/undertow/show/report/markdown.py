"""The diagnosis as Markdown, for an issue or a pull request: the first finding in full, the others folded."""

import re
from collections.abc import Sequence

from undertow.schema import Diagnosis, Finding, Remedy
from undertow.views.places import where
from undertow.views.report_wording import GLYPHS, cost, evidence_line, headline, percent, when


def to_markdown(diagnosis: Diagnosis, tensors: Sequence[str] = ()) -> str:
    verdict, extent = headline(diagnosis)
    parts = [f"## {verdict}", _escaped(extent), _escaped(diagnosis.story)]
    for place, finding in enumerate(diagnosis.findings):
        parts.append(_section(finding, tensors) if place == 0 else _folded(finding, tensors))
    if diagnosis.coverage.reasons:
        parts.append("\n".join(f"- {_escaped(reason)}" for reason in diagnosis.coverage.reasons))
    parts.append(f"Undertow {diagnosis.undertow}. Cost of watching: {cost(diagnosis.overhead)}.")
    return "\n\n".join(parts) + "\n"


def _title(finding: Finding) -> str:
    return f"{GLYPHS[finding.severity]} {finding.severity}: {finding.code} {finding.name}"


def _folded(finding: Finding, tensors: Sequence[str]) -> str:
    """A click opens it; the blank lines let what is inside be Markdown."""
    return f"<details><summary>{_title(finding)}</summary>\n\n{_body(finding, tensors)}\n\n</details>"


def _section(finding: Finding, tensors: Sequence[str]) -> str:
    return f"### {_title(finding)}\n\n{_body(finding, tensors)}"


def _body(finding: Finding, tensors: Sequence[str]) -> str:
    lines = [
        _escaped(finding.summary),
        _follows(finding) + f"- **When:** {when(finding)}; confidence {percent(finding.confidence, 0)}\n"
        f"- **Where:** {_escaped(where(finding.layers, tensors, 12))}",
    ]
    if finding.evidence:
        known = "\n".join(f"- {_escaped(evidence_line(evidence))}" for evidence in finding.evidence)
        lines.append(f"How it is known:\n\n{known}")
    return "\n\n".join([*lines, *map(_remedy, finding.remedies)])


def _remedy(remedy: Remedy) -> str:
    parts = [f"**Try:** {_escaped(remedy.what)}"]
    if remedy.how:
        parts.append(_fenced(remedy.how))
    when_not = f" Not when: {_escaped(remedy.when_not)}" if remedy.when_not else ""
    parts.append(f"Risk: {_escaped(remedy.risk)}{when_not}")
    return "\n\n".join(parts)


def _follows(finding: Finding) -> str:
    return "" if finding.follows_from is None else f"- **Follows from:** {finding.follows_from}\n"


def _fenced(code: str) -> str:
    """The fence is longer than any run of backticks within: names of layers are written by anybody."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", code)), default=0))
    return f"{fence}python\n{code}\n{fence}"


def _escaped(text: str) -> str:
    """Layer paths come from the user's model: they must not become formatting or a new line."""
    one_line = " ".join(text.split())
    return re.sub(r"([\\`*_<>\[\]|#~])", r"\\\1", one_line)
