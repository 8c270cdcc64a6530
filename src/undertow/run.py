"""A run opened for reading: its numbers, its facts and its diagnosis. No torch needed."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.run_series import NewestSteps
from undertow.components.alerts import alerts_of_run
from undertow.components.enhanced_analyzer import EnhancedGradientAnalyzer
from undertow.components.run_analyses import dynamics_of_run, flow_of_run
from undertow.components.run_weights import weights_of_run
from undertow.detect.engine import Engine
from undertow.detect.engine.journal import changes_in
from undertow.errors import UnknownNameError, UnreadableRunError
from undertow.explain.blindness import record_gap
from undertow.run_context import RunContext
from undertow.schema import Diagnosis, Finding, LayerGraph, LayerTable, RunFacts, StepRange, StreamCoverage
from undertow.schema.addresses import address_of
from undertow.schema.checkpoints import WeightReport
from undertow.schema.quantities import FLOW
from undertow.schema.seeds.enhanced import AnalysisDepth, EnhancedLayerGradientAnalysis
from undertow.schema.seeds.flow_records import GradientFlowVisualization, GradientVisualizationConfig
from undertow.schema.seeds.history import GradientAlert, GradientDebugConfig
from undertow.settings import Settings
from undertow.store.latest import LATEST
from undertow.store.listing import find_runs
from undertow.store.missing import missing_parts
from undertow.store.names import known_name
from undertow.store.reader import RunReader
from undertow.store.run_documents import RUN_FILE

if TYPE_CHECKING:
    from undertow.store.cloud.mirror import Mirror


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run folder, while it is written or after.

    `path` is the folder, or the name of a run under the directory of runs (`UNDERTOW_DIR`, else `runs/`);
    `latest` is the newest one there. An address such as `s3://bucket/run` is read through a copy in a cache.
    """
    address = address_of(path)
    return Run(locate(path)) if address is None else Run(*_fetched(address))


def locate(path: str | os.PathLike[str]) -> Path:
    """The folder meant: a run as given, a name under the directory of runs, or the run that a folder leads to."""
    address = address_of(path)
    if address is not None:
        return _fetched(address)[0]
    directory = Settings.resolve().directory
    if os.fspath(path) == LATEST:  # never ./latest: where the command is called must not change its meaning
        return _latest(directory)
    folder = Path(path).expanduser()
    if _is_run(folder):
        return folder
    if not folder.is_absolute() and len(folder.parts) == 1 and _is_run(directory / folder):
        return directory / folder
    if folder.is_dir():
        return _run_inside(folder)
    if folder.name == LATEST and not folder.exists():
        return _latest(folder.parent)
    if folder.exists() or folder.is_absolute() or len(folder.parts) != 1:
        return folder  # the reader says what is wrong with it
    known = _runs_in(directory)
    if not known:
        raise UnreadableRunError(
            f"there is no run {str(path)!r}, and no runs in {directory}",
            way_out="Give the path of a run folder, or set UNDERTOW_DIR to where your runs are",
        )
    near = difflib.get_close_matches(folder.name, known, 3) or known[-3:]
    raise UnreadableRunError(
        f"there is no run {str(path)!r}, here or in {directory}", way_out=f"There are: {', '.join(near)}"
    )


def _fetched(address: str) -> tuple[Path, Mirror]:
    from undertow.store.cloud.mirror import Mirror

    mirror = Mirror(address)
    mirror.fetch()
    return mirror.folder, mirror


def _latest(directory: Path) -> Path:
    """Where the link leads; without one, as on a file system that has none, the newest run."""
    if _is_run(directory / LATEST):
        return directory / LATEST
    runs = [summary for summary in find_runs(directory) if summary.status != "unreadable"]
    if runs:
        return runs[0].folder
    what = "holds no run" if directory.is_dir() else "does not exist"
    raise UnreadableRunError(
        f"there is no latest run: the folder {directory} {what}",
        way_out="Give the path of a run folder, or set UNDERTOW_DIR to where your runs are",
    )


def _run_inside(folder: Path) -> Path:
    """The run that a folder of runs leads to, if there is no doubt which one."""
    inside = _runs_in(folder)
    if _is_run(folder / LATEST):
        return folder / LATEST
    if len(inside) > 1:
        raise UnreadableRunError(
            f"{folder} holds {len(inside)} runs", way_out=f"Name one of them, for example {folder / inside[-1]}"
        )
    return folder / inside[0] if inside else folder


def _is_run(folder: Path) -> bool:
    return (folder / RUN_FILE).exists()


def _runs_in(directory: Path) -> list[str]:
    if not directory.is_dir():
        return []
    return sorted(entry.name for entry in directory.iterdir() if entry.name != LATEST and _is_run(entry))


_TOGETHER = 256  # frames read at a time


class Run:
    """What a run recorded. Numbers line up with `steps`; NaN where nothing was measured."""

    def __init__(self, folder: Path, mirror: Mirror | None = None) -> None:
        self._mirror = mirror  # what keeps the folder up to date, if it is a copy
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
        """Damaged and missing files, in words."""
        return [*self.reader.problems, *missing_parts(self.reader)]

    def refresh(self) -> bool:
        """Pick up what was written since; True if anything is new."""
        if self._mirror is not None:
            self._mirror.refresh()
        changed = self.reader.refresh()
        if changed:
            self.__dict__.pop("_diagnosis", None)
        return changed

    def __repr__(self) -> str:
        steps = self.steps
        extent = f"steps {steps[0]}–{steps[-1]}, {len(steps)} recorded" if len(steps) else "no steps"
        return f"<Run {self.name!r}: {self.status}, {extent}, {len(self.layers.parameters)} layers, {self.folder}>"

    def _repr_html_(self) -> str | None:
        """In a notebook: the verdict, the heatmap and the findings."""
        from undertow.show.notebook.display import html_of_run

        return html_of_run(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """In a notebook with anywidget: a live view beside it."""
        from undertow.show.notebook.display import bundle_of_run

        return bundle_of_run(self)

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
        return self.reader.scalars(known_name(name, self.scalar_names, "scalar"))

    def series(self, quantity: str, layer: str) -> NDArray[np.float32]:
        """One number per step for one layer, given by its path."""
        found = self.layers.get(str(layer))
        if found is None:
            known_name(str(layer), self.layers.paths, "layer")
            raise UnknownNameError(f"this run has no layer {str(layer)!r}")
        return self.reader.series(known_name(quantity, self.quantities, "quantity"), found.id)

    def matrix(self, quantity: str, rows: slice | None = None) -> NDArray[np.float32]:
        """(steps × layers), columns in the order of `layers`; `rows` picks a part of `steps`."""
        return self.reader.matrix(known_name(quantity, self.quantities, "quantity"), rows=rows)

    def along_connections(self, quantity: str) -> NDArray[np.float32]:
        """(steps × `graph.connections`): `flow_share` or `flow_size`; NaN where it was not measured."""
        return self.reader.along_connections(known_name(quantity, FLOW.names, "quantity of connections"))

    def newest_along_connections(self, quantity: str, count: int, first: int = 0) -> NDArray[np.float32]:
        """The newest `count` samples of it, (samples × `graph.connections`), from place `first` of `steps` on."""
        return self.reader.newest_along_connections(quantity, count, first)

    def to_pandas(self) -> Any:
        """A pandas DataFrame: step, layer, one column per quantity."""
        from undertow.store.exports import to_pandas

        return to_pandas(self.reader)

    def to_arrow(self) -> Any:
        """A pyarrow Table: step, layer, one column per quantity."""
        from undertow.store.exports import to_arrow

        return to_arrow(self.reader)

    # -- the analyses of the original, from this run -------------------------------------------------------

    def flow(
        self,
        config: GradientVisualizationConfig | None = None,
        *,
        last: int | None = None,
        findings: Sequence[Finding] | None = None,
    ) -> GradientFlowVisualization:
        """How gradients flow through the executed model: shares, gains, bottlenecks, regions, paths.

        `last` looks at that many of the newest recorded steps only. What is called vanishing, exploding or dead is what
        `diagnose()` found, or the `findings` given.
        """
        numbers = self if last is None else NewestSteps(self, last)
        return flow_of_run(numbers, self.findings if findings is None else findings, config)

    def dynamics(
        self,
        depth: AnalysisDepth | str = AnalysisDepth.STANDARD,
        window: int = 100,
        threshold: float = 0.8,
        *,
        last: int | None = None,
        findings: Sequence[Finding] | None = None,
    ) -> EnhancedLayerGradientAnalysis:
        """Every layer and the network over time: health, convergence, phase, stability, priorities.

        `depth`, `window` and `threshold` are those of `EnhancedGradientAnalyzer`. `last` looks at the gradients of that
        many of the newest recorded steps only, and at the whole loss. Health, plateau, overfitting and advice are those
        of `diagnose()`, or of the `findings` given.
        """
        numbers = self if last is None else NewestSteps(self, last)
        settings = EnhancedGradientAnalyzer(depth, window, threshold)  # which checks them
        return dynamics_of_run(
            numbers,
            self.findings if findings is None else findings,
            depth=settings.analysis_depth,
            window=settings.convergence_window,
            threshold=settings.stability_threshold,
            whole=self,
        )

    def alerts(
        self,
        config: GradientDebugConfig | Mapping[str, Any] | None = None,
        *,
        findings: Sequence[Finding] | None = None,
    ) -> list[GradientAlert]:
        """The original's five alerts for what `diagnose()` (or the `findings` given) says goes on, layer by layer."""
        return alerts_of_run(self, self.findings if findings is None else findings, config)

    def weights(self, *, findings: Sequence[Finding] | None = None) -> WeightReport:
        """The weights when last measured, their drift since the first time, and what `diagnose()` (or the `findings`
        given) says of them."""
        judged = self.findings if findings is None else findings
        return weights_of_run(self, judged, self.name, self.facts.undertow)

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
        # The last word on each finding: its steps hold all that the words before it said.
        journal = {change.place: change for change in changes_in(self.events)}
        self._engine.recall(journal.values(), adopt=self._thinned or bool(self.problems))
        return self.explain(self._engine.findings(), self._engine.gaps(), self._engine.coverage())

    def explain(
        self,
        findings: Sequence[Finding],
        gaps: Sequence[str] = (),
        coverage: Mapping[str, StreamCoverage] | None = None,
    ) -> Diagnosis:
        """The diagnosis of this run if these are its findings; `gaps` is what could not be judged. A `coverage`
        counts if nothing was counted while the run was written: frames may have been thinned out since."""
        steps = self.steps
        extent = StepRange(int(steps[0]), int(steps[-1]), len(steps)) if len(steps) else StepRange(None, None, 0)
        facts = self.facts if self.facts.coverage else replace(self.facts, coverage=dict(coverage or {}))
        context = RunContext(self.folder, facts, self.layers, self.graph, self.events, self.reader)
        return context.diagnose(findings, self.name, extent, self.status, self.problems, [*record_gap(steps), *gaps])

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
