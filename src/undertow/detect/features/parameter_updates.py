"""What optimizers do to parameters: who holds them, which gradient they step with, how the weights began."""

import math

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Flags, FrameBatch, FrameView, LayerValues, Limit, Tracker, Wake, changed, where
from undertow.detect.features.first_weights import FirstWeights
from undertow.detect.features.matrices import middle
from undertow.detect.features.untrained_parts import UntrainedParts
from undertow.schema import GradientState

Mask = NDArray[np.bool_]


def _unusual(batch: FrameBatch) -> Flags:
    """Frames in which no parameter has a gradient, or one that no optimizer holds has."""
    out = batch.none()
    if batch.has("gradient"):
        present = batch.row("gradient_state") == GradientState.PRESENT
        outside = batch.row("gradient_optimizer") == -1
        fed = outside & present & (batch.row("gradient_zero_fraction") < 1) if outside.any() else outside
        out[batch.at("gradient")] = ~present.any(axis=1) | fed.any(axis=1)
    return out


class ParameterUpdates(Tracker):
    """For the conditions of UPD003. All of it by layer, as it was when last seen."""

    wakes_on = (
        changed("gradient_optimizer")
        | changed("gradient_state")
        | where("gradient_carried", lambda carried: carried == 1)
        | where("update_norm", lambda moves: moves == 0)
        | Wake(_unusual)
    )
    near_rounding = Limit(10.0, "times what the format drops of a weight, for the median step of those that move")
    too_large = Limit(1e18, "of a gradient: its square overflows, so Adam divides by infinity; that is another fault")

    held = LayerValues(np.bool_, False)  # by any optimizer
    holder = LayerValues(np.float32, np.nan)  # of those that got gradients
    norm = LayerValues(np.float32, np.nan)  # of the gradient
    pushed = LayerValues(np.float32, np.nan)  # largest element of the gradient stepped with
    size = LayerValues(np.float32, 1.0)  # largest element of the weight
    own_rate = LayerValues(np.float32, np.nan)  # of its parameter group

    def __init__(self) -> None:
        self.rate = self.rate_before = math.nan  # of this frame, or the last one known; and of the frame before
        self.norm_before: NDArray[np.float32] = np.zeros(0, np.float32)  # `norm` before this frame, of its block
        self.has_moved = False  # any weight, ever
        self._first = FirstWeights()
        self.parts = UntrainedParts(self._first)

    def follow(self, view: FrameView) -> None:
        self._learn(view)
        sizes, ids = view.row("weight_max_abs"), view.ids("weight")
        if sizes is not None and ids is not None:
            _remember(self.size, ids, sizes)
        rates, ids = view.row("optimizer_rate"), view.ids("optimizer")
        if rates is not None and ids is not None:
            _remember(self.own_rate, ids, rates)
        self._follow_gradients(view)

    def _follow_gradients(self, view: FrameView) -> None:
        ids, states, holders = view.ids("gradient"), view.row("gradient_state"), view.row("gradient_optimizer")
        norms, pushes = view.row("gradient_norm"), view.row("stepped_gradient_max_abs")
        if ids is None or states is None or holders is None or norms is None or pushes is None:
            return
        self.norm_before = self.norm[ids]
        _remember(self.norm, ids, norms)
        self.held[ids[holders >= 0]] = True
        self.held[ids[holders == -1]] = False
        present = states == GradientState.PRESENT
        _remember(self.holder, ids, np.where(present, holders, np.float32(np.nan)))
        rate = view.scalar("lr")
        self.rate_before, self.rate = self.rate, self.rate if math.isnan(rate) else rate
        if view.ids("update") is not None and not view.skipped and rate != 0:
            self.pushed[ids] = np.where(present, pushes, np.float32(np.nan))

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        """Of calm frames the latest counts: a holder that changes is not calm."""
        if not (self.has_moved and self._first.has_seen_all):
            for place in range(first, last):
                self._learn(batch.view(place))
        if batch.frames_with("weight", first, last):
            ids, sizes = batch.latest("weight_max_abs", first, last)
            self.size[ids] = sizes
        if batch.frames_with("optimizer", first, last):
            ids, rates = batch.latest("optimizer_rate", first, last)
            self.own_rate[ids] = rates
        places = batch.frames_with("gradient", first, last)
        if not places:
            return
        ids, norms = batch.latest("gradient_norm", first, last)
        self.norm[ids] = norms
        rates = batch.scalar("lr")
        known = [rates[place] for place in places if not math.isnan(rates[place])]
        self.rate = float(known[-1]) if known else self.rate
        rows = slice(*np.searchsorted(batch.at("gradient"), (first, last)))
        present = batch.row("gradient_state")[rows] == GradientState.PRESENT
        holders = np.where(present, batch.row("gradient_optimizer")[rows], np.float32(np.nan))
        _remember(self.holder, batch.ids("gradient"), np.fmax.reduce(holders, axis=0))
        stepping = set(batch.frames_with("update", first, last)) - set(np.flatnonzero(batch.skipped | (rates == 0)))
        stepped = [row for row, place in enumerate(places) if place in stepping]
        if stepped:
            pushes = batch.row("stepped_gradient_max_abs")[rows][stepped[-1]]
            self.pushed[batch.ids("gradient")] = np.where(present[stepped[-1]], pushes, np.float32(np.nan))

    def _learn(self, view: FrameView) -> None:
        if not self.has_moved:
            moves = view.row("update_norm")
            self.has_moved = moves is not None and bool((moves > 0).any())
        self._first.take(view)

    def unmoved(self, view: FrameView) -> NDArray[np.int32] | None:
        """Parameters that stood still at a step with a gradient that should have moved them; None where no step was
        measured, or it was skipped.
        """
        moves, ids = view.row("update_norm"), view.ids("update")
        if moves is None or ids is None or view.ids("gradient") is None or view.skipped or view.scalar("lr") == 0:
            return None
        pushed = self.pushed[ids]
        return ids[(moves == 0) & (pushed > 0) & (pushed < self.too_large) & self.held[ids]]

    def rounds_away(self, view: FrameView, ids: NDArray[np.int32]) -> Mask:
        """Whether a plain step, a lower bound for most optimizers, is below what the number format can hold; or those
        that move hardly move by more than that: an optimizer that remembers far larger gradients makes short steps.
        """
        layout, own = view.layout, self.own_rate[ids]
        rate = np.where(np.isnan(own), view.scalar("lr"), own)
        ratios = view.row("update_ratio")
        others = middle(ratios[ratios > 0].astype(np.float64)) if ratios is not None else math.nan
        rounding = layout.rounding[ids]
        return (
            layout.is_low_precision[ids]
            | (rate * self.pushed[ids] < rounding * self.size[ids])
            | (others < self.near_rounding * rounding)
        )

    def fills_a_gap(self, view: FrameView, layers: tuple[int, ...]) -> bool:
        """New weights with trained ones both before and behind them: nobody trains around what nobody has trained."""
        layout = view.layout
        trained = layout.order[self.held]
        order = layout.order[[i for i in layers if np.isfinite(layout.order[i])]]
        between = len(order) > 0 and len(trained) > 0 and trained.min() < order.min() <= order.max() < trained.max()
        return bool(between) and self.parts.are_new(layout, layers)


def _remember(known: NDArray[np.float32], ids: NDArray[np.int32], values: NDArray[np.float32]) -> None:
    measured = ~np.isnan(values)
    known[ids[measured]] = values[measured]
