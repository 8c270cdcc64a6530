"""Frames in, findings out: the same while a run is written and when it is read."""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from undertow.detect.engine.batch import FrameBatch, batches_of
from undertow.detect.engine.condition import ENDED, Condition, Judgement, Pace
from undertow.detect.engine.coverage import CoverageCounter
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.ledger import FindingChange, Ledger
from undertow.detect.engine.registry import conditions
from undertow.detect.engine.sampling_rounds import SamplingRounds
from undertow.detect.engine.watcher import watchers_of
from undertow.detect.features.loss_trend import ANOTHER_TRAINING, LAYERS_REUSED, LossTrend
from undertow.schema import Finding, Frame, LayerGraph, LayerTable, StreamCoverage

_EVERY_FRAME = 64  # steps at the start of which every condition sees every frame


class Engine:
    """Shows every batch of frames to every condition and keeps one finding per condition."""

    strict: ClassVar[bool] = False  # for tests: an error in a condition is raised

    def __init__(self, chosen: Iterable[type[Condition]] | None = None) -> None:
        self._watchers = watchers_of(conditions() if chosen is None else chosen)
        self._layout = LayerIndex()
        self._losses = LossTrend()
        self._rounds = SamplingRounds()
        self._ledger = Ledger()
        self._coverage = CoverageCounter()
        self.broken: dict[str, str] = {}  # what stumbled, and over what
        paces = (watcher.pace for watcher in self._watchers)
        self._shown: dict[Pace, int] = {pace: -1 for pace in paces if pace is not None}  # the latest step

    def set_layers(self, layers: LayerTable, graph: LayerGraph) -> None:
        """Before the first frame, and again whenever the table grows or learns more."""
        self._layout = LayerIndex(layers, graph)
        self._coverage.grow(self._layout.count)
        for watcher in self._watchers:
            watcher.grow(self._layout.count)

    def observe(self, frame: Frame) -> list[FindingChange]:
        """A single frame is a batch of one."""
        return [change for _, changes in self.changes([frame]) for change in changes]

    def observe_many(self, frames: Sequence[Frame]) -> list[tuple[Frame, list[FindingChange]]]:
        """The frames at which something changed. However frames are split into batches, the changes are the same."""
        return list(self.changes(frames))

    def changes(self, frames: Sequence[Frame]) -> Iterator[tuple[Frame, list[FindingChange]]]:
        """As `observe_many`, for who asks what is `beside` a change: that is what was found up to its frame, however
        many came with it. To be taken to the end: frames are judged as they are asked for.
        """
        for batch in batches_of([*map(self._rounds.shown, frames)], self._layout):
            closed = self._begin_anew(batch.frames[0])
            self._coverage.observe(batch)
            said = self._judge(batch)
            for place in sorted({*said, 0} if closed else said):
                frame = batch.frames[place]
                settled = [
                    self._ledger.settle(condition, judgement, frame.step, self._layout.path)
                    for condition, judgement in said.get(place, ())
                ]
                changes = [*(closed if place == 0 else ()), *(change for change in settled if change is not None)]
                if changes:
                    yield frame, changes

    def findings(self) -> list[Finding]:
        """Everything found so far, in the order it was first found."""
        return self._ledger.findings()

    def beside(self, change: FindingChange) -> list[Finding]:
        """All findings but the one that changed."""
        return self._ledger.beside(change)

    def recall(self, changes: Iterable[FindingChange], *, adopt: bool) -> None:
        """Take over what an engine saw that watched the run live: see `Ledger.recall`."""
        self._ledger.recall(changes, adopt=adopt)

    def coverage(self) -> dict[str, StreamCoverage]:
        """How often each stream was measured, in the frames shown so far."""
        return self._coverage.result(self._layout)

    def gaps(self) -> list[str]:
        """What was not judged to the end, in words."""
        return [f"{name} was not judged to the end: its rule stumbled over {why}" for name, why in self.broken.items()]

    def _judge(self, batch: FrameBatch) -> dict[int, list[tuple[tuple[str, str], Judgement]]]:
        """What all conditions say, by the place of the frame."""
        said: dict[int, list[tuple[tuple[str, str], Judgement]]] = {}
        with np.errstate(all="ignore"):  # a division by zero must not print into the user's terminal
            batch.losses = [self._losses.observe(frame) for frame in batch.frames]
            shown = self._paced(batch)
            for watcher in self._watchers:
                part = batch if watcher.pace is None else shown[watcher.pace]
                if watcher.name in self.broken or not len(part):
                    continue
                try:
                    judged = list(watcher.judge(part))
                except Exception as error:
                    if self.strict:
                        raise
                    self.broken[watcher.name] = f"{type(error).__name__}: {error}"  # the others go on
                    continue
                for place, condition, judgement in judged:
                    said.setdefault(part.places[place], []).append((condition, judgement))
        return said

    def _begin_anew(self, frame: Frame) -> list[FindingChange]:
        """Where another training begins in the same run, conditions about the course of one forget the one before; all
        do, where it has the layers of one that is gone."""
        if frame.scalars.get(ANOTHER_TRAINING) != 1:
            return []
        self._coverage.begin_anew(frame.step)
        is_reused = frame.scalars.get(LAYERS_REUSED) == 1
        forgetful = [watcher for watcher in self._watchers if is_reused or watcher.is_of_one_training]
        for watcher in forgetful:
            watcher.renew(self._layout.count)
        over = [place for place in self._ledger.ongoing() if any(watcher.owns(place) for watcher in forgetful)]
        settled = [self._ledger.settle(place, ENDED, frame.step, self._layout.path) for place in over]
        return [change for change in settled if change is not None]

    def _paced(self, batch: FrameBatch) -> dict[Pace, FrameBatch]:
        """What conditions are shown of it that need not see every frame."""
        out: dict[Pace, FrameBatch] = {}
        for pace in self._shown:
            places = [place for place, frame in enumerate(batch.frames) if self._is_due(pace, frame)]
            out[pace] = batch if len(places) == len(batch) else batch.part(places)
        return out

    def _is_due(self, pace: Pace, frame: Frame) -> bool:
        """Slow conditions need not see every frame of a long run; which ones depends on steps alone."""
        if pace[0] not in frame.blocks:
            return True
        last, step = self._shown[pace], frame.step
        if step >= _EVERY_FRAME and last < step < last + pace[1]:
            return False
        self._shown[pace] = step
        return True
