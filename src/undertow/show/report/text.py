"""The diagnosis for a terminal: one screen that says what, where, why, what next, and what it cost."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from undertow.schema import Diagnosis, Finding, Health, Severity, SourcePlace
from undertow.views.places import where
from undertow.views.report_wording import GLYPHS, cost, evidence_line, headline, percent, short_evidence, when
from undertow.views.source_excerpt import excerpt, further, heading

STYLES = {
    Severity.INFO: "dim",
    Severity.MILD: "cyan",
    Severity.MODERATE: "yellow",
    Severity.SEVERE: "bold dark_orange",
    Severity.CRITICAL: "bold magenta",
}
HEALTH_STYLES = {
    Health.HEALTHY: "bold blue",
    Health.MINOR: "cyan",
    Health.PROBLEMS: "bold dark_orange",
    Health.CRITICAL: "bold magenta",
    None: "dim",
}
ROWS = 23  # of a terminal of 24, so that the prompt below does not push the verdict out
_LEAST_OTHERS = 3  # lines for other findings that the code to paste leaves
_LEAST_PLACE = 12  # cells of a layer's name that are worth showing
_NOTES = 2
_SURE = 0.8


def report(
    diagnosis: Diagnosis, *, tensors: Sequence[str] = (), details: bool = False, rows: int = ROWS
) -> RenderableType:
    """`tensors` are the paths of all that the run watched: with them, long lists of layers become short."""
    if not details:
        return Screen(diagnosis, tensors, rows)
    parts: list[RenderableType] = [_title(diagnosis), Text(""), Text(diagnosis.story), Text("")]
    parts.append(_rows([*_once("Note", diagnosis.coverage.reasons), ("Cost", Text(cost(diagnosis.overhead)))]))
    return Group(*parts, *(part for finding in diagnosis.findings for part in _details(finding, tensors)))


@dataclass(frozen=True, slots=True)
class Screen:
    """What fits: verdict, story, the first finding and the cost always; then code, other findings and notes."""

    diagnosis: Diagnosis
    tensors: Sequence[str] = ()
    rows: int = ROWS

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        findings = self.diagnosis.findings
        first = findings[0] if findings and findings[0].severity is not Severity.INFO else None
        others = findings if first is None else findings[1:]
        top = [_title(self.diagnosis), Text(self.diagnosis.story)]
        main = [] if first is None else list(_main(first, self.tensors))
        code = "" if first is None or not first.remedies else first.remedies[0].how
        told = self.diagnosis.story.casefold()
        notes = [note for note in self.diagnosis.coverage.reasons if note.rstrip(".").casefold() not in told][:_NOTES]
        closing = [("Cost", Text(cost(self.diagnosis.overhead)))]

        def height(*rows: tuple[str, Text]) -> int:
            return len(console.render_lines(_rows(rows), options, pad=False)) if rows else 0

        room = self.rows - 2 - sum(len(console.render_lines(part, options, pad=False)) for part in top)
        room -= height(*main, *closing)
        code_row = ("Next", Text(code, style="bold"))
        if code and height(code_row) <= room - min(len(others), _LEAST_OTHERS):
            main.append(code_row)
            room -= height(code_row)
        width = options.max_width - len("Where  ")
        shown = others[: max(1, room - 1)] if len(others) > room - 1 else others  # the last line says how to read on
        lines = _once("Also", (_line(finding, self.tensors, width) for finding in shown))
        room -= len(lines)
        shown_notes = _once("Note", notes)
        while shown_notes and height(*shown_notes) >= room:
            shown_notes.pop()
        room -= height(*shown_notes)
        more = len(others) - len(shown)
        if (first is not None or more) and room > 0:
            explain = f"undertow explain {first.code}   or " if first is not None else ""
            counted = f" for {more:,} more finding{'s' * (more > 1)}" if more else ""
            closing.append(("More", Text(f"{explain}add --details{counted}")))
            room -= 1
        blocks = [block for block in (main, lines + shown_notes + closing) if block]
        yield from (top[0], Text(""), top[1], Text(""))
        for place, block in enumerate(blocks):
            if place and room > 0:
                yield Text("")
            yield _rows(block)


def _rows(rows: Iterable[tuple[str, Text]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, width=5)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, text)
    return table


def table_of(first: str, *others: str, numbers: bool = True) -> Table:
    """Columns side by side; those after the first one are numbers, or words."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, overflow="fold", min_width=min(10, len(first)))
    for column in others:
        table.add_column(column, justify="right" if numbers else "left", overflow="fold", no_wrap=numbers)
    return table


def _once(label: str, texts: Iterable[Text | str]) -> list[tuple[str, Text]]:
    """The label before the first of them only."""
    return [("" if place else label, Text(text) if isinstance(text, str) else text) for place, text in enumerate(texts)]


def _title(diagnosis: Diagnosis) -> Text:
    verdict, extent = headline(diagnosis)
    return Text.assemble((verdict, HEALTH_STYLES[diagnosis.health]), "  ", (extent, "dim"))


def _label(finding: Finding) -> Text:
    return Text.assemble(
        (f"{GLYPHS[finding.severity]} {finding.severity}", STYLES[finding.severity]), f"  {finding.code} {finding.name}"
    )


def _main(finding: Finding, tensors: Sequence[str]) -> Iterator[tuple[str, Text]]:
    unsure = f"  ({percent(finding.confidence, 0)} sure)" if finding.confidence < _SURE else ""
    yield "What", Text.assemble(_label(finding), (unsure, "dim"))
    yield "When", Text(when(finding))
    yield "Where", Text(where(finding.layers, tensors))
    if finding.source:
        yield "Line", _lines(finding.source, around=False)
    if finding.evidence:
        yield "Why", Text(short_evidence(finding.evidence[0]))


def _lines(places: Sequence[SourcePlace], around: bool) -> Text:
    """The first place with its code, and where else to look. Terminals that can do so open the file on a click."""
    first = places[0]
    text = Text.assemble("--> ", (heading(first), Style(bold=True, link=_address(first))))
    for line in excerpt(first, around):
        code, _, mark = line.partition("   ← ")
        text.append(f"\n{code}")
        text.append(f"   ← {mark}" if mark else "", "yellow")
    if around:
        text.append("".join(f"\n= {line}" for line in further(places)), "dim")
    return text


def _address(place: SourcePlace) -> str:
    return Path(place.file).absolute().as_uri()


def _line(finding: Finding, tensors: Sequence[str], width: int) -> Text:
    """Without the layer, and then without the step, where little of them would be left."""
    label = _label(finding)
    follows = "" if finding.follows_from is None else f", follows from {finding.follows_from}"
    step = f", step {finding.first_step:,}"
    place = f": {where(finding.layers, tensors, 1)}" if finding.layers else ""
    tails = (follows + step + place, follows + step, follows)
    room = width - label.cell_len
    tail = next((tail for tail in tails if cell_len(tail) <= room), follows)
    if tail == tails[1] and room >= cell_len(tail) + _LEAST_PLACE:
        tail = tails[0]
    text = Text.assemble(label, (tail, "dim"))
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _details(finding: Finding, tensors: Sequence[str]) -> Iterator[RenderableType]:
    yield Text("")
    follows = "" if finding.follows_from is None else f"  (follows from {finding.follows_from})"
    yield Text.assemble(_label(finding), (follows, "dim"))
    yield Padding(Text(finding.summary), (0, 0, 0, 2))
    rows = [("When", Text(f"{when(finding)}; confidence {percent(finding.confidence, 0)}"))]
    rows.append(("Where", Text(where(finding.layers, tensors, 40))))
    if finding.source:
        rows.append(("Line", _lines(finding.source, around=True)))
    rows += _once("Seen", map(evidence_line, finding.evidence))
    for remedy in finding.remedies:
        code = "\n".join(f"  {line}" for line in remedy.how.splitlines())
        text = Text.assemble(remedy.what, "\n", (code, "bold"), ("\nRisk: " + remedy.risk, "dim"))
        if remedy.when_not:
            text.append(f"\nNot when: {remedy.when_not}", "dim")
        if remedy.measured:
            text.append(f"\nMeasured: {remedy.measured}")
        rows.append(("Try", text))
    yield Padding(_rows(rows), (0, 0, 0, 2))
