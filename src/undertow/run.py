"""A run opened for reading: its numbers, its facts and its diagnosis. No torch needed."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Engine
from undertow.detect.journal import changes_in
from undertow.errors import UnknownNameError, UnreadableRunError
from undertow.explain.diagnosis import diagnose
from undertow.schema.facts import RunFacts
from undertow.schema.findings import Diagnosis, Finding, StepRange
from undertow.schema.graph import LayerGraph
from undertow.schema.layers import LayerTable
from undertow.settings import Settings
from undertow.store.latest import LATEST
from undertow.store.listing import find_runs
from undertow.store.reader import RunReader


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run folder, while it is written or after.

    `path` is the folder, or the name of a run under the directory of runs (`UNDERTOW_DIR`, else `runs/`);
    `latest` is the newest one there.
    """
    return Run(locate(path))


def locate(path: str | os.PathLike[str]) -> Path:
    """The folder meant: as given, or by name under the directory of runs."""
    folder = Path(path).expanduser()
    if folder.exists():
        return folder
    if folder.name == LATEST and (newest := _newest(folder.parent)) is not None:
        return newest  # a file system without links
    if folder.is_absolute() or len(folder.parts) != 1:
        return folder
    directory = Settings.resolve().directory
    if (directory / folder).exists():
        return directory / folder
    if folder.name == LATEST and (newest := _newest(directory)) is not None:
        return newest
    known = sorted(entry.name for entry in directory.iterdir() if entry.is_dir()) if directory.is_dir() else []
    if not known:
        raise UnreadableRunError(
            f"there is no run {str(path)!r}, and no runs in {directory}",
            way_out="Give the path of a run folder, or set UNDERTOW_DIR to where your runs are",
        )
    near = difflib.get_close_matches(folder.name, known, 3) or known[-3:]
    raise UnreadableRunError(
        f"there is no run {str(path)!r}, here or in {directory}", way_out=f"There are: {', '.join(near)}"
    )


def _newest(directory: Path) -> Path | None:
    runs = [summary for summary in find_runs(directory) if summary.status != "unreadable"]
    return runs[0].folder if runs else None


_TOGETHER = 256  # frames shown to the rules at a time


class Run:
    """What a run recorded. Numbers line up with `steps`; NaN where nothing was measured."""

    def __init__(self, folder: Path) -> None:
        self.reader = RunReader(folder)
        self._engine = Engine()
        self._engine_layers: LayerTable | None = None
        self._seen_sequence = -1
        self._thinned = False

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return self.reader.folder

    @property
    def name(self) -> str:
        return self.facts.name or self.folder.resolve().name

    @property
    def facts(self) -> RunFacts:
        return self.reader.facts

    @property
    def status(self) -> str:
        """running, finished, failed, interrupted, detached, or killed."""
        return self.reader.status

    @property
    def layers(self) -> LayerTable:
        return self.reader.layers

    @property
    def graph(self) -> LayerGraph:
        return self.reader.graph

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.reader.events()

    @property
    def problems(self) -> list[str]:
        """Damage met while reading, in words."""
        return self.reader.problems

    def refresh(self) -> bool:
        """Pick up what was written since; True if anything is new."""
        changed = self.reader.refresh()
        if changed:
            self.__dict__.pop("_diagnosis", None)
        return changed

    def __repr__(self) -> str:
        steps = self.steps
        extent = f"steps {steps[0]}–{steps[-1]}, {len(steps)} recorded" if len(steps) else "no steps"
        return f"<Run {self.name!r}: {self.status}, {extent}, {len(self.layers.parameters)} layers, {self.folder}>"

    # -- numbers ------------------------------------------------------------------------------------------

    @property
    def steps(self) -> NDArray[np.int64]:
        return self.reader.steps

    @property
    def quantities(self) -> list[str]:
        """Names of which this run has numbers."""
        return self.reader.quantities

    @property
    def scalar_names(self) -> list[str]:
        return self.reader.scalar_names

    def scalars(self, name: str) -> NDArray[np.float64]:
        """One number per step: `loss`, `lr`, `step_time`, and what the training logged."""
        return self.reader.scalars(_known(name, self.scalar_names, "scalar"))

    def series(self, quantity: str, layer: str) -> NDArray[np.float32]:
        """One number per step for one layer, given by its path."""
        found = self.layers.get(str(layer))
        if found is None:
            _known(str(layer), self.layers.paths, "layer")
            raise UnknownNameError(f"this run has no layer {str(layer)!r}")
        return self.reader.series(_known(quantity, self.quantities, "quantity"), found.id)

    def matrix(self, quantity: str) -> NDArray[np.float32]:
        """(steps × layers), columns in the order of `layers`."""
        return self.reader.matrix(_known(quantity, self.quantities, "quantity"))

    def to_pandas(self) -> Any:
        """A pandas DataFrame: step, layer, one column per quantity."""
        from undertow.store.exports import to_pandas

        return to_pandas(self.reader)

    def to_arrow(self) -> Any:
        """A pyarrow Table: step, layer, one column per quantity."""
        from undertow.store.exports import to_arrow

        return to_arrow(self.reader)

    # -- what it means ------------------------------------------------------------------------------------

    def diagnose(self) -> Diagnosis:
        """What is wrong, where, why, and what to do. Call `refresh` first to judge a run that is still written."""
        return self._diagnosis

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The ranked findings of `diagnose()`."""
        return self._diagnosis.findings

    @cached_property
    def _diagnosis(self) -> Diagnosis:
        self._replay()
        events = self.events
        self._engine.recall(changes_in(events), adopt=self._thinned)
        steps = self.steps
        extent = StepRange(int(steps[0]), int(steps[-1]), len(steps)) if len(steps) else StepRange(None, None, 0)
        return diagnose(
            self._engine.findings(),
            run=self.name,
            facts=self.facts,
            layers=self.layers,
            steps=extent,
            events=events,
            status=self.status,
            problems=self.problems,
        )

    def _replay(self) -> None:
        """Show the engine the frames it has not seen: the same ones, in the same order, as while training."""
        if self._engine_layers != self.layers:
            self._engine.set_layers(self.layers, self.graph)
            self._engine_layers = self.layers
        frames = self.reader.frames(self._seen_sequence)
        while batch := list(itertools.islice(frames, _TOGETHER)):
            self._thinned |= any(not frame.blocks for frame in batch)
            self._engine.observe_many(batch)
            self._seen_sequence = batch[-1].sequence


def _known(name: str, names: Iterable[str], noun: str) -> str:
    """The name if this run has it; otherwise an error that lists the nearest ones."""
    known = list(names)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, 5, 0.5) or [other for other in known if name in other][:5]
    if near:
        way_out = f"Near: {', '.join(near)}"
    elif known:
        way_out = f"There are: {', '.join(known[:8])}" + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    else:
        way_out = f"The run has no {noun} at all"
    raise UnknownNameError(f"this run has no {noun} {name!r}", way_out=way_out)
