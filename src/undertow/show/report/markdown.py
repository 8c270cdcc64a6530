"""The diagnosis as Markdown, for an issue or a pull request: the first finding in full, the others folded."""

import re
from collections.abc import Sequence

from undertow.schema import Diagnosis, Finding, Remedy
from undertow.views.places import where
from undertow.views.report_wording import GLYPHS, cost, evidence_line, headline, percent, when
from undertow.views.source_excerpt import excerpt, further, heading


def to_markdown(diagnosis: Diagnosis, tensors: Sequence[str] = ()) -> str:
    verdict, extent = headline(diagnosis)
    parts = [f"## {verdict}", _escaped(extent), _escaped(diagnosis.story)]
    for place, finding in enumerate(diagnosis.findings):
        title = f"{GLYPHS[finding.severity]} {finding.severity}: {finding.code} {finding.name}"
        body = _body(finding, tensors)
        # A click opens the others; the blank lines let what is inside be Markdown.
        folded = f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
        parts.append(folded if place else f"### {title}\n\n{body}")
    if diagnosis.coverage.reasons:
        parts.append("\n".join(f"- {_escaped(reason)}" for reason in diagnosis.coverage.reasons))
    parts.append(f"Undertow {diagnosis.undertow}. Cost of watching: {cost(diagnosis.overhead)}.")
    return "\n\n".join(parts) + "\n"


def _body(finding: Finding, tensors: Sequence[str]) -> str:
    follows = "" if finding.follows_from is None else f"- **Follows from:** {finding.follows_from}\n"
    lines = [
        _escaped(finding.summary),
        f"{follows}- **When:** {when(finding)}; confidence {percent(finding.confidence, 0)}\n"
        f"- **Where:** {_escaped(where(finding.layers, tensors, 12))}",
    ]
    if finding.source:
        code = "\n".join([*excerpt(finding.source[0]), *(f"= {line}" for line in further(finding.source))])
        lines.append(f"**Line:** {_escaped(heading(finding.source[0]))}\n\n{_fenced(code, 'python')}")
    if finding.evidence:
        known = "\n".join(f"- {_escaped(evidence_line(evidence))}" for evidence in finding.evidence)
        lines.append(f"How it is known:\n\n{known}")
    return "\n\n".join([*lines, *map(_remedy, finding.remedies)])


def _remedy(remedy: Remedy) -> str:
    parts = [f"**Try:** {_escaped(remedy.what)}"]
    if remedy.how:
        parts.append(_fenced(remedy.how, "python"))
    when_not = f" Not when: {_escaped(remedy.when_not)}" if remedy.when_not else ""
    parts.append(f"Risk: {_escaped(remedy.risk)}{when_not}")
    return "\n\n".join(parts)


def _fenced(code: str, language: str) -> str:
    """The fence is longer than any run of backticks within: names of layers are written by anybody."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", code)), default=0))
    return f"{fence}{language}\n{code}\n{fence}"


def _escaped(text: str) -> str:
    """Layer paths come from the user's model: they must not become formatting or a new line."""
    one_line = " ".join(text.split())
    return re.sub(r"([\\`*_<>\[\]|#~])", r"\\\1", one_line)
