"""The diagnosis for a terminal: one screen that says what, where, why, what next, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from undertow.schema.findings import Diagnosis, Finding
from undertow.schema.severity import Health, Severity
from undertow.show.report.places import where
from undertow.show.report.wording import GLYPHS, cost, evidence_line, headline, percent, when

STYLES = {
    Severity.INFO: "dim",
    Severity.MILD: "cyan",
    Severity.MODERATE: "yellow",
    Severity.SEVERE: "bold dark_orange",
    Severity.CRITICAL: "bold magenta",
}
_HEALTH_STYLES = {
    Health.HEALTHY: "bold blue",
    Health.MINOR: "cyan",
    Health.PROBLEMS: "bold dark_orange",
    Health.CRITICAL: "bold magenta",
    None: "dim",
}
_OTHERS_SHOWN = 4


def report(diagnosis: Diagnosis, *, tensors: Sequence[str] = (), details: bool = False) -> RenderableType:
    """`tensors` are the paths of all that the run watched: with them, long lists of layers become short."""
    verdict, extent = headline(diagnosis)
    title = Text.assemble((verdict, _HEALTH_STYLES[diagnosis.health]), "  ", (extent, "dim"))
    parts: list[RenderableType] = [title, Text(""), Text(diagnosis.story), Text("")]
    alarms = [finding for finding in diagnosis.findings if finding.severity is not Severity.INFO]
    if alarms and not details:
        parts += [_main(alarms[0], tensors), Text("")]
    parts.append(_closing(diagnosis, alarms, tensors, details))
    if details:
        parts += [part for finding in diagnosis.findings for part in _details(finding, tensors)]
    return Group(*parts)


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _label(finding: Finding) -> Text:
    return Text.assemble(
        (f"{GLYPHS[finding.severity]} {finding.severity}", STYLES[finding.severity]), f"  {finding.code} {finding.name}"
    )


def _main(finding: Finding, tensors: Sequence[str]) -> Table:
    table = _grid()
    table.add_row("What", Text.assemble(_label(finding), (f"\n{when(finding)}", "dim")))
    table.add_row("Where", Text(where(finding.layers, tensors)))
    if finding.evidence:
        table.add_row("Why", Text(evidence_line(finding.evidence[0])))
    if finding.remedies:
        remedy = finding.remedies[0]
        table.add_row("Next", Text.assemble(remedy.what, "\n", (_indented(remedy.how), "bold")))
    return table


def _closing(diagnosis: Diagnosis, alarms: list[Finding], tensors: Sequence[str], details: bool) -> Table:
    table = _grid()
    others = [finding for finding in diagnosis.findings if not alarms or finding is not alarms[0]]
    others = [] if details else others
    shown = others[:_OTHERS_SHOWN]
    for place, finding in enumerate(shown):
        line = Text.assemble(_label(finding), (f"  {where(finding.layers, tensors, 2)}, {when(finding)}", "dim"))
        table.add_row("Also" if place == 0 else "", line)
    if len(others) > len(shown):
        table.add_row("", Text(f"and {len(others) - len(shown)} more", style="dim"))
    reasons = diagnosis.coverage.reasons
    if reasons:
        table.add_row("Note", Text("\n".join(reasons if details else reasons[:3])))
    table.add_row("Cost", Text(cost(diagnosis.overhead)))
    if alarms and not details:
        table.add_row("More", Text(f"undertow explain {alarms[0].code}   or add --details"))
    return table


def _details(finding: Finding, tensors: Sequence[str]) -> Iterator[RenderableType]:
    yield Text("")
    yield _label(finding)
    yield Padding(Text(finding.summary), (0, 0, 0, 2))
    table = _grid()
    table.add_row("When", Text(f"{when(finding)}; confidence {percent(finding.confidence, 0)}"))
    table.add_row("Where", Text(where(finding.layers, tensors, 40)))
    for place, evidence in enumerate(finding.evidence):
        table.add_row("Seen" if place == 0 else "", Text(evidence_line(evidence)))
    for remedy in finding.remedies:
        text = Text.assemble(remedy.what, "\n", (_indented(remedy.how), "bold"), ("\nRisk: " + remedy.risk, "dim"))
        if remedy.measured:
            text.append(f"\nMeasured: {remedy.measured}")
        table.add_row("Try", text)
    yield Padding(table, (0, 0, 0, 2))


def _indented(code: str) -> str:
    return "\n".join(f"  {line}" for line in code.splitlines())
