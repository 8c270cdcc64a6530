"""A run at one step, as the lines of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
from rich.cells import cell_len

from undertow.schema import Finding, Layer, Severity, health_of
from undertow.show.terminal.ability import Ability
from undertow.show.terminal.axis import Axis
from undertow.show.terminal.camera import Camera
from undertow.show.terminal.ink import PAPER, Indices, Ink
from undertow.show.terminal.line_labels import labels_of, line_of, without_shared_beginning
from undertow.show.terminal.sparkline import is_wide, sparkline
from undertow.show.terminal.worst import Sufferer, worst_layers
from undertow.show.terminal.writing import BOLD, DIM, Writing, abbreviate, clean
from undertow.views.grid import Grid, folded
from undertow.views.palette import Cell, Palette, palette_of
from undertow.views.report_wording import GLYPHS, HEALTH_GLYPHS
from undertow.views.scale import number

STYLES = {
    Severity.INFO: DIM,
    Severity.MILD: "36",
    Severity.MODERATE: "33",
    Severity.SEVERE: "1;33",
    Severity.CRITICAL: "1;35",
}
_LEAST_NAME = 8
_LONGEST_LABEL = 40  # cells for a name, or a third of the terminal if that is less
_SHORTEST_LABEL = 13  # "gradient_norm" stands there, too
_ROOMY = 72  # columns from which on sentences begin where cells do
_TALLEST = 3  # rows that a layer of a small model may take


@dataclass(frozen=True, slots=True)
class Moment:
    """What to show of a run: the steps across, and the step up to which they are drawn."""

    step: int
    first: int
    last: int
    growing: bool = False
    state: str = ""  # playing, paused, live …
    selected: str | None = None
    keys: tuple[str, ...] = ()  # the line at the bottom


@dataclass(frozen=True, slots=True)
class _Plan:
    """How many rows each part gets."""

    heat: int
    loss: int
    worst: int
    ticker: int
    legend: int

    @classmethod
    def of(cls, rows: int, has_keys: bool, has_loss: bool) -> _Plan:
        step = sum(rows >= enough for enough in (10, 14, 20, 28, 36))
        loss = (0, 1, 1, 1, 2, 2)[step] if has_loss else 0
        worst = (0, 0, 0, 2, 3, 5)[step]
        ticker = (0, 1, 1, 2, 3, 4)[step]
        legend = 1 if step else 0
        heat = rows - 2 - loss - worst - ticker - legend - has_keys
        return cls(max(1, heat), loss, worst, ticker, legend)


class Picture:
    """Draws moments of a run for one terminal."""

    def __init__(self, camera: Camera, ability: Ability, palette: Palette | None = None, title: str = "") -> None:
        self.camera = camera
        self.ability = ability
        self.palette = palette or palette_of()
        self.title = title
        self._widths: tuple[list[Layer], int, int] | None = None
        self._small: tuple[Grid, int, Ink, Grid, Indices] | None = None
        self._inks: dict[tuple[object, bool], Ink] = {}

    def lines(self, moment: Moment, columns: int, rows: int) -> list[str]:
        """At most `rows` lines of at most `columns` cells."""
        camera = self.camera
        losses, _ = camera.loss()
        plan = _Plan.of(rows, bool(moment.keys), bool(len(losses)))
        layers = len(camera.layers())
        label, brief = self._labels(min(_LONGEST_LABEL, columns // 3))
        beside = not self.ability.halves or layers <= plan.heat
        halves = 2 if self.ability.halves and beside else 1
        axis = Axis.of(moment.first, moment.last, columns - label - 1, halves, moment.growing)
        grid = camera.grid(axis.first, axis.width, axis.columns)
        found = camera.found_by(moment.step)
        lines = [self._title(moment, found, columns)]
        if grid is None:
            lines.append(str(self._line(columns).add(self._why_nothing(), DIM)))
        else:
            lines += self._heat(grid, axis, moment, plan.heat, label, columns, beside, brief)
            lines.append(self._axis(axis, moment, label, columns))
            if plan.loss:
                lines += self._loss(axis, moment, plan.loss, label, columns)
            if plan.legend:
                lines.append(self._legend(grid, moment, label, columns))
            if plan.worst:
                sufferers = worst_layers(grid, axis.column(moment.step), camera.usual(), found, plan.worst)
                lines += [self._sufferer(one, place, label, columns) for place, one in enumerate(sufferers)]
        room = rows - len(lines) - bool(moment.keys)
        if plan.ticker:
            lines += [self._finding(one, place, label, columns) for place, one in enumerate(found[: max(0, room)])]
        if moment.keys:
            lines = lines[: rows - 1]
            lines += [""] * (rows - 1 - len(lines)) + [self._keys(moment.keys, columns)]
        return lines[:rows]

    # -- parts --------------------------------------------------------------------------------------------

    def _line(self, columns: int) -> Writing:
        return Writing(columns, self.ability)

    def _labels(self, most: int) -> tuple[int, bool]:
        """How wide they are, at most `most` cells, and whether what all layers share must be left out for that."""
        layers = self.camera.layers()
        if self._widths is None or self._widths[0] is not layers:
            paths = [layer.path for layer in layers]
            self._widths = (layers, _widest(paths), _widest(without_shared_beginning(paths)))
        _, whole, brief = self._widths
        is_brief = len(layers) > 1 and whole > most
        return min(most, max(brief if is_brief else whole, _SHORTEST_LABEL)), is_brief

    def _named(self, name: str, label: int, columns: int, style: str = DIM) -> Writing:
        """A line that begins with a name, to the left of where cells begin."""
        text = self._fit(name, label)
        return self._line(columns).to(label - cell_len(text)).add(text, style).to(label + 1)

    def _fit(self, text: str, width: int) -> str:
        return abbreviate(clean(text, self.ability.unicode), width, "…" if self.ability.unicode else "~")

    def _title(self, moment: Moment, found: Sequence[Finding], columns: int) -> str:
        end = f"step {moment.step:,}"
        losses, _ = self.camera.loss()
        if len(losses):
            place = int(np.searchsorted(self.camera.steps, moment.step, "right")) - 1
            if place >= 0:
                end += f" · loss {number(float(losses[place]))}"
        if moment.state:
            end += f" · {moment.state}"
        end_width = min(columns, len(end))
        health = health_of(one.severity for one in found)
        worst = max((one.severity for one in found), key=lambda one: one.rank, default=Severity.INFO)
        verdict = f"{HEALTH_GLYPHS[health]} {health} " if self.camera.was_judged else "not judged "
        room = columns - end_width - len(verdict) - 1
        whole = self.title or self.camera.run.name
        name = self._fit(whole, room) if room >= min(_LEAST_NAME, len(whole)) else ""  # two letters tell nothing
        line = self._line(columns)
        if columns - end_width > len(verdict):
            line.add(verdict, STYLES[worst] if worst is not Severity.INFO else "")
        if columns - end_width - len(verdict) > 3:
            line.add(name, BOLD)
        return str(line.to(columns - end_width).add(end))

    def _why_nothing(self) -> str:
        camera = self.camera
        if not len(camera.steps):
            return "waiting for the first step …" if camera.run.status == "running" else "no step was recorded"
        if camera.quantity not in camera.run.quantities:
            return f"{camera.quantity} is not recorded"
        return f"no layer matches {camera.pattern!r}"

    def _heat(
        self, grid: Grid, axis: Axis, moment: Moment, rows: int, label: int, columns: int, beside: bool, brief: bool
    ) -> list[str]:
        """The heatmap: a name and its cells in each line."""
        two_rows = self.ability.halves and not beside
        ink = self._ink(grid)
        small, cells = self._folded(grid, rows * 2 if two_rows else rows, ink)
        cells = np.repeat(cells, axis.repeat, axis=1)
        cells[:, (axis.column(moment.step) + 1) * axis.repeat :] = PAPER
        tall = 1 if two_rows else min(_TALLEST, max(1, rows // len(small.rows)))
        painted = ink.rows(cells, beside)
        labels = labels_of(grid.rows, small.rows, 2 if two_rows else 1, brief=brief)
        chosen = line_of(grid.rows, labels, moment.selected)
        lines: list[str] = []
        for place, (name, cells_of_row) in enumerate(zip((text for _, text in labels), painted)):
            for again in range(tall):
                line = self._named("" if again else name, label, columns, "7" if place == chosen else "")
                lines.append(str(line.to(label + 1, exactly=True).painted(cells_of_row, axis.characters)))
        return lines

    def _folded(self, grid: Grid, rows: int, ink: Ink) -> tuple[Grid, Indices]:
        """The same for every step that is played, as long as nothing new is read."""
        known = self._small
        if known is None or known[0] is not grid or known[1:3] != (rows, ink):
            small = folded(grid, rows)
            known = self._small = (grid, rows, ink, small, ink.indices(small))
        return known[3], known[4]

    def _axis(self, axis: Axis, moment: Moment, label: int, columns: int) -> str:
        """Where findings began, where we are, and the steps at both ends."""
        marks = [" "] * axis.characters
        styles = [""] * axis.characters
        start, end = f"{axis.first:,}", f"{moment.last:,}"
        here = min(max(axis.character(moment.step), 0), axis.characters - 1)
        for place, letter in enumerate(start[: axis.characters]):
            marks[place], styles[place] = letter, DIM
        if len(start) + len(end) + 2 <= axis.characters and not moment.growing:
            for place, letter in enumerate(end, axis.characters - len(end)):
                marks[place], styles[place] = letter, DIM
        for finding in self.camera.findings:
            place = axis.character(finding.detected_step)
            if finding.severity.is_alarm and finding.detected_step <= moment.step and 0 <= place < axis.characters:
                marks[place], styles[place] = GLYPHS[finding.severity], STYLES[finding.severity]
        if moment.step < moment.last:
            marks[here], styles[here] = "↑" if marks[here] == " " else marks[here], BOLD
        line = self._named("step", label, columns)
        for style, alike in groupby(zip(marks, styles), key=itemgetter(1)):
            line.add("".join(mark for mark, _ in alike), style)
        return str(line)

    def _loss(self, axis: Axis, moment: Moment, rows: int, label: int, columns: int) -> list[str]:
        losses, bad = self.camera.loss()
        steps = self.camera.steps
        shown = steps <= moment.step
        means = axis.gather(steps, losses)  # heights stay as they are while the run is played
        whole = sparkline(means, axis.any_of(steps, bad & shown), rows, self.ability.unicode)
        until = axis.character(moment.step) + 1
        name = "loss (log)" if is_wide(means) else "loss"
        names = [""] * (len(whole) - 1) + [name]
        return [str(self._named(name, label, columns).add(bars[:until], "36")) for name, bars in zip(names, whole)]

    def _legend(self, grid: Grid, moment: Moment, label: int, columns: int) -> str:
        """The scale and the marks that occur; with a row selected, what it says instead."""
        if moment.selected is not None and moment.selected in grid.rows:
            return str(self._line(columns).add(self._read_out(grid, moment)))
        ink = self._ink(grid)
        line = self._named(grid.quantity, label, columns)
        low, high = number(grid.scale.low), number(grid.scale.high)
        width = max(4, min(12, columns // 8))
        line.add(f"{low} ").painted(ink.scale(width), width).add(f" {high}")
        for cell in sorted(grid.kinds - {Cell.VALUE}, reverse=True):
            meaning = self.palette.marks[cell].name
            if line.room >= len(meaning) + 5:
                line.add("   ").painted(ink.mark(cell), 1).add(f" {meaning}")
        return str(line)

    def _read_out(self, grid: Grid, moment: Moment) -> str:
        row = grid.rows.index(moment.selected or "")
        column = min(max((moment.step - grid.first) // grid.width, 0), grid.columns - 1)
        cell = Cell(int(grid.cells[row, column]))
        says = number(float(grid.values[row, column])) if cell is Cell.VALUE else self.palette.marks[cell].name
        start = grid.first + column * grid.width
        steps = f"step {start:,}" if grid.width == 1 else f"steps {start:,}–{start + grid.width - 1:,}"
        if grid.width > 1 and cell is Cell.VALUE:
            steps = f"largest of {steps}"
        usual = self.camera.usual()[row]
        more = f", usually {number(float(usual))}" if np.isfinite(usual) else ""
        return f"{moment.selected}: {grid.quantity} {says} ({steps}{more})"

    def _sufferer(self, one: Sufferer, place: int, label: int, columns: int) -> str:
        line = self._titled("worst" if place == 0 else "", label, columns)
        name = self._fit(one.path, max(label, columns // 3) - 2)
        line.add(f"{GLYPHS[one.severity]} " if one.severity else "· ", STYLES[one.severity] if one.severity else DIM)
        return str(line.add(name).add(f"  {one.what}", DIM))

    def _finding(self, one: Finding, place: int, label: int, columns: int) -> str:
        line = self._titled("found" if place == 0 else "", label, columns)
        line.add(f"{GLYPHS[one.severity]} {one.code}", STYLES[one.severity])
        return str(line.add(f" step {one.detected_step:,}", DIM).add(f"  {one.summary}"))

    def _titled(self, title: str, label: int, columns: int) -> Writing:
        """With a word in the column of names, where there is room for both."""
        return self._line(columns) if columns < _ROOMY else self._named(title, label, columns)

    def _keys(self, keys: Sequence[str], columns: int) -> str:
        """The last two always, the others as far as there is room."""
        first, last = list(keys[:-2]), list(keys[-2:])
        while first and cell_len("  ".join(first + last)) > columns:
            first.pop()
        return str(self._line(columns).add("  ".join(first + last), DIM))

    def _ink(self, grid: Grid) -> Ink:
        key = (self.palette.scheme, grid.scale.diverging)
        if key not in self._inks:
            self._inks[key] = Ink(self.ability, self.palette, grid.scale.diverging)
        return self._inks[key]


def _widest(names: Sequence[str]) -> int:
    """With room for the sign that says that there are more."""
    return 2 + max((cell_len(clean(name[: 2 * _LONGEST_LABEL])) for name in names), default=0)
