"""Looks at a run: reads what one picture of it needs, and no more often than it must."""

import time
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.journal import changes_in
from undertow.run import Run
from undertow.schema import Finding, Layer
from undertow.store.journal import EVENTS_FILE
from undertow.views.grid import Grid, grid_of
from undertow.views.line_points import line_of_scalar
from undertow.views.scale import usual_of
from undertow.views.tiles import drawable, in_reading_order, subjects
from undertow.views.verdict import was_watched

FAVOURITES = ("gradient_norm", "update_ratio", "weight_norm", "activation_rms", "activation_zero_fraction")
_USUAL_SECONDS = 3.0  # how old the medians of a growing run may be


class Camera:
    """One quantity of some layers of a run. `pattern` holds globs, or parts of names, separated by blanks."""

    def __init__(self, run: Run, quantity: str = FAVOURITES[0], pattern: str = "") -> None:
        self.run = run
        self.quantity = quantity
        self.pattern = pattern
        self.findings: list[Finding] = []
        self.was_judged = False  # by whoever wrote the run
        self._journal_size = -1
        self._layers: tuple[object, list[Layer]] | None = None
        self._grid: tuple[object, Grid] | None = None
        self._usual: tuple[object, float, NDArray[np.float32]] | None = None
        self._loss: tuple[object, NDArray[np.float64], NDArray[np.bool_]] | None = None
        self._read_journal()

    def refresh(self) -> bool:
        """Pick up what was written since; True if anything is new."""
        changed = self.run.refresh()
        return self._read_journal() or changed

    @property
    def steps(self) -> NDArray[np.int64]:
        return self.run.steps

    @property
    def quantities(self) -> list[str]:
        """Those worth leafing through: the usual ones first."""
        stored = drawable(self.run.reader)
        first = [name for name in FAVOURITES if name in stored]
        return first + [name for name in stored if name not in first]

    def layers(self) -> list[Layer]:
        """As executed, those that the quantity is of and the pattern matches."""
        reader = self.run.reader
        key = (reader.layers, self.quantity, self.pattern)
        if self._layers is None or self._layers[0] != key:
            self._layers = (key, self._matching())
        return self._layers[1]

    def _matching(self) -> list[Layer]:
        reader = self.run.reader
        ordered = in_reading_order(reader.layers[place] for place in subjects(reader, self.quantity))
        words = self.pattern.split()
        if not words:
            return ordered
        return [layer for layer in ordered if any(fnmatchcase(layer, word) or word in layer for word in words)]

    def grid(self, first: int, width: int, columns: int) -> Grid | None:
        """None as long as nothing of the quantity is recorded."""
        if self.quantity not in self.run.quantities or not len(self.steps):
            return None
        key = (self.run.reader.last_sequence, self.quantity, self.pattern, len(self.run.layers), first, width, columns)
        if self._grid is None or self._grid[0] != key:
            layers = self.layers()
            if not layers:
                return None
            span = (first, first + width * columns - 1)
            self._grid = (key, grid_of(self.run.reader, self.quantity, layers, span, columns))
        return self._grid[1]

    def usual(self) -> NDArray[np.float32]:
        """The median of each layer of the grid, over the whole run."""
        key, now = (self.quantity, self.pattern, len(self.run.layers)), time.monotonic()
        if self._usual is None or self._usual[0] != key or now - self._usual[1] > _USUAL_SECONDS:
            reader = self.run.reader
            medians = dict(zip(subjects(reader, self.quantity), usual_of(reader, self.quantity).tolist()))
            values = np.array([medians[layer.id] for layer in self.layers()], np.float32)
            self._usual = (key, now, values)
        return self._usual[2]

    def loss(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """One number per step, and whether it was not finite; empty if the run has no loss."""
        if "loss" not in self.run.scalar_names:
            return np.empty(0), np.empty(0, np.bool_)
        key = self.run.reader.last_sequence
        if self._loss is None or self._loss[0] != key:
            values = self.run.scalars("loss")
            line = line_of_scalar(self.steps, values, max(1, len(values)))
            self._loss = (key, values, line.nonfinite)
        return self._loss[1], self._loss[2]

    def found_by(self, step: int) -> list[Finding]:
        """What the watching process had found by then, the newest first; what was over by then is left out."""
        known = [one for one in self.findings if one.detected_step <= step and (one.ongoing or step <= one.last_step)]
        return sorted(known, key=lambda one: (one.severity.is_alarm, one.detected_step), reverse=True)

    def _read_journal(self) -> bool:
        try:
            size = (self.run.folder / EVENTS_FILE).stat().st_size
        except OSError:
            size = 0
        if size == self._journal_size:
            return False
        self._journal_size = size
        events = self.run.events
        latest = {change.place: change.finding for change in changes_in(events)}
        self.was_judged = bool(latest) or was_watched(events)
        self.findings = sorted(latest.values(), key=lambda one: one.detected_step)
        return True
