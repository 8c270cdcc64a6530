"""Parameters that get a gradient and that no optimizer holds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import count_of, name_layers
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import GradientState
from undertow.schema.severity import Severity

AreNew = Callable[[LayerIndex, tuple[int, ...]], bool]


class Unheld:
    """Those of the watched models, by layer; and how many there are of layers that no watched model has."""

    def __init__(self, are_new: AreNew) -> None:
        """`are_new`: whether layers still held PyTorch's own random numbers when first measured."""
        self.held: NDArray[np.bool_] = np.zeros(0, bool)  # by any optimizer, when last seen
        self._are_new = are_new
        self._fed = LayerStreak()
        self._outside, self._unregistered = Condition("outside"), Condition("unregistered")
        self._strange = 0
        self._empty_groups = 0.0  # of any optimizer
        self._arrived: NDArray[np.float32] = np.zeros(0, np.float32)  # norm of the latest gradient
        self._place: NDArray[np.float32] = np.zeros((2, 0), np.float32)  # where a weight is: its norm and its drift
        self._rests: NDArray[np.bool_] = np.zeros(0, bool)  # the weight was seen at the same place twice
        self._is_moved: NDArray[np.bool_] = np.zeros(0, bool)  # by the program itself

    def grow(self, count: int) -> None:
        self._fed.grow(count)
        self.held = grown(self.held, count, False)
        self._arrived = grown(self._arrived, count, np.nan)
        self._place = np.stack([grown(row, count, np.nan) for row in self._place])
        self._rests = grown(self._rests, count, False)
        self._is_moved = grown(self._is_moved, count, False)

    @property
    def is_waiting(self) -> bool:
        return self._outside.is_open or self._unregistered.is_open or self._strange > 0

    def news(self, batch: FrameBatch) -> Flags:
        news = batch.scalar("unregistered_parameters", 0.0) > 0
        if batch.has("gradient"):
            holders, states = batch.row("gradient_optimizer"), batch.row("gradient_state")
            news |= batch.changed("gradient", holders)
            outside = holders == -1
            if outside.any():
                fed = outside & (states == GradientState.PRESENT) & (batch.row("gradient_zero_fraction") < 1)
                news |= batch.flags("gradient", fed)
        return news

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> None:
        """The latest gradients are remembered, of frames in which any layer is outside."""
        rows = slice(*np.searchsorted(batch.at("gradient"), (first, last)))
        if rows.start < rows.stop:
            outside = (batch.row("gradient_optimizer")[rows] == -1).any(axis=1)
            if outside.any():
                latest = batch.row("gradient_norm")[rows][outside][-1]
                self._arrived[batch.ids("gradient")] = latest

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        return (*self._observe_outside(view), *self._observe_strangers(view))

    def _observe_outside(self, view: FrameView) -> tuple[Verdict, ...]:
        self._empty_groups = max(self._empty_groups, view.frame.scalars.get("optimizer_empty_groups", 0.0))
        holders, ids = view.row("gradient_optimizer"), view.ids("gradient")
        states, zeros = view.row("gradient_state"), view.row("gradient_zero_fraction")
        if holders is None or ids is None or states is None or zeros is None:
            return ()
        outside = holders == -1
        held = ids[holders >= 0]
        self.held[held] = True
        if not outside.any() and not self._outside.is_open:
            return ()
        self.held[ids[outside]] = False
        self._end(held)
        self._end(ids[states == GradientState.FROZEN])
        fed = outside & (states == GradientState.PRESENT) & (zeros < 1)
        stale = fed & self._is_stale(view, ids)
        self._end(ids[stale])
        self._fed.hold(ids[fed & ~stale], view.step)
        self._follow_weights(view)
        # Of a weight that was not measured twice nobody knows whether the program moves it by itself.
        members = (self._fed.lasted(limit.UNHELD_PATIENCE) & self._rests) | (
            self._fed.lasted(4 * limit.UNHELD_PATIENCE) & ~self._is_moved
        )
        if not members.any():
            return self._outside.end()
        layers = tuple(view.layout.in_order(np.flatnonzero(members)))
        return self._outside.hold(layers, lambda: self._verdict(view, layers))

    def _end(self, ids: NDArray[np.int32]) -> None:
        self._fed.end(ids)
        self._place[:, ids] = np.nan
        self._rests[ids] = self._is_moved[ids] = False

    def _follow_weights(self, view: FrameView) -> None:
        """Of those outside: weights that are at another place than before have an update of the program's own."""
        ids, norms, drifts = view.ids("weight"), view.row("weight_norm"), view.row("weight_drift")
        if ids is None or norms is None or drifts is None:
            return
        outside = self._fed.length[ids] > 0
        chosen, now = ids[outside], np.stack([norms, drifts])[:, outside]
        before = self._place[:, chosen]
        known = ~np.isnan(now[0]) & ~np.isnan(before[0])
        moved = known & ((now != before) & ~np.isnan(now) & ~np.isnan(before)).any(axis=0)
        self._place[:, chosen] = np.where(np.isnan(now[0]), before, now)
        self._rests[chosen] = (self._rests[chosen] | known) & ~moved
        self._is_moved[chosen] |= moved
        self._fed.end(chosen[moved])

    def _is_stale(self, view: FrameView, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """What nobody uses any more keeps its last gradient, the same to the last bit, while others change."""
        norms = view.row("gradient_norm")
        if norms is None:
            return np.zeros(len(ids), bool)
        before = self._arrived[ids]
        self._arrived[ids] = norms
        return (norms == before) & bool(((norms != before) & np.isfinite(norms) & np.isfinite(before)).any())

    def _verdict(self, view: FrameView, layers: tuple[int, ...]) -> Verdict:
        layout = view.layout
        first_step = int(self._fed.since[np.array(layers)].min())
        evidence = tuple(
            Evidence("gradient_optimizer", layout.path(i), -1.0, 0.0,
                     f"got a non-zero gradient at {int(self._fed.length[i])} measured steps; no optimizer holds it")
            for i in layers[:5]
        )  # fmt: skip
        named = name_layers(layout, layers)
        share = len(layers) / max(1, len(layers) + int(self.held.sum()))
        verb = "is" if len(layers) == 1 else "are"
        if self._empty_groups:
            summary = f"{named} {verb} trained by no optimizer: a parameter group that was made for them is empty."
            how = "groups without a parameter: a generator, as parameters() returns, is empty once it has been read"
            empty = Evidence("optimizer_empty_groups", None, self._empty_groups, 0.0, how)
            return Verdict("outside", True, Severity.SEVERE, layers, first_step, 0.98, summary, (*evidence, empty))
        if share > limit.UNHELD_MEANT and self._is_most(view, layers) and not self.is_gap(layout, layers):
            summary = (
                f"{count_of(len(layers), 'trainable tensor')}, most of the model, are in no optimizer ({named}); "
                "if that is meant, requires_grad_(False) would save their gradients."
            )
            return Verdict("outside", True, Severity.MILD, layers, first_step, 0.6, summary, evidence)
        summary = f"{named} {verb} trained by no optimizer: gradients arrive and are never used."
        return Verdict("outside", True, Severity.SEVERE, layers, first_step, 0.98, summary, evidence)

    def _is_most(self, view: FrameView, layers: tuple[int, ...]) -> bool:
        """Biases and scales are many tensors, and few numbers."""
        sizes = np.zeros(view.layout.count)
        for layer in view.layout.layers.parameters:
            sizes[layer.id] = layer.parameter_count
        return sizes[list(layers)].sum() > sizes[self.held].sum()

    def is_gap(self, layout: LayerIndex, layers: tuple[int, ...]) -> bool:
        """New weights with trained ones both before and behind them: nobody trains around what nobody has trained."""
        trained = layout.order[self.held]
        order = layout.order[[i for i in layers if np.isfinite(layout.order[i])]]
        between = len(order) > 0 and len(trained) > 0 and trained.min() < order.min() <= order.max() < trained.max()
        return bool(between) and self._are_new(layout, layers)

    def _observe_strangers(self, view: FrameView) -> tuple[Verdict, ...]:
        """Parameters that get a gradient and belong to no watched model; looked for in the first steps."""
        count = view.frame.scalars.get("unregistered_parameters")
        if count is None:
            return self._unregistered.stay()
        self._strange = self._strange + 1 if count > 0 else 0
        if not self._strange:
            return self._unregistered.end()
        if self._strange < limit.UNHELD_PATIENCE:
            return self._unregistered.stay()
        return self._unregistered.hold(True, lambda: _strangers(view.step - self._strange + 1, count))


def _strangers(since: int, count: float) -> Verdict:
    how = "tensors that ran in the model and got a gradient, and that neither model.parameters() nor an optimizer has"
    evidence = (Evidence("unregistered_parameters", None, count, 0.0, how),)
    summary = (
        f"{count_of(int(count), 'tensor')} of layers that run {'is' if count == 1 else 'are'} unknown to the "
        "optimizer: it was made from a model that does not hold them."
    )
    return Verdict("unregistered", True, Severity.SEVERE, (), since, 0.95, summary, evidence)
