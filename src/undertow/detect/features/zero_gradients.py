"""Gradients that are there, and of which every element is exactly zero: since when, and whether that is a fault."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import (
    Flags,
    FrameBatch,
    FrameView,
    LayerIndex,
    LayerStreak,
    LayerValues,
    Limit,
    Tracker,
    Wake,
)
from undertow.schema import GradientState

Mask = NDArray[np.bool_]


def _is_erased(given: NDArray[np.float32], used: NDArray[np.float32], broken: NDArray[np.float32]) -> Mask:
    """Whether a gradient that the backward pass gave was all zero when the optimizer used it."""
    return (given > 0) & (used == 0) & ~(broken > 0)


def _with_zeros(batch: FrameBatch) -> Flags:
    out = batch.none()
    if batch.has("activation"):  # which modules are silent is remembered
        outputs = batch.row("activation_zero_fraction")
        out |= batch.changed("activation", np.where(np.isnan(outputs), outputs, outputs == 1))
    if batch.has("gradient"):
        names = ("gradient_max_abs", "stepped_gradient_max_abs", "stepped_gradient_nonfinite_count")
        erased = _is_erased(*(batch.row(name) for name in names))
        out |= batch.flags("gradient", (batch.row("gradient_zero_fraction") == 1) | erased)
    return out


class ZeroGradients(Tracker):
    """`layers` whose gradient has been zero for too long."""

    wakes_on = Wake(_with_zeros)

    patience = Limit.chance(10, "measured steps: zero-initialised branches are zero for the first steps only")
    patience_of_all = Limit.chance(20, "measured steps where no layer has a gradient: the data may not have begun")
    patience_with_zero_weights = Limit.chance(5, "measured steps, with weights of zero: nothing can begin to move")
    patience_if_erased = Limit.chance(4, "measured steps: backward gave one, no branch that starts at zero does")
    steady = Limit.plan(16, "measured steps with a gradient: what then turns zero is no branch used now and then")
    patience_after_steady = Limit.chance(5, "measured steps, after a steady flow")
    patience_if_cut = Limit.chance(3, "measured steps, after a steady flow, of everything from the input on: a cut")

    erased = LayerValues(np.bool_, False)  # zero at the step, though not after the backward pass
    silent = LayerValues(np.bool_, False)  # modules whose output was zero everywhere
    _steady = LayerValues(np.int32, 0)  # steps in a row with a gradient, up to the last one
    _ran = LayerValues(np.bool_, False)  # the module ran in a step with a zero gradient
    _rests = LayerValues(np.bool_, False)  # there are steps in which the module does not run
    _due = LayerValues(np.bool_, False)

    def __init__(self) -> None:
        self.streak = LayerStreak()
        self.is_informed = False
        self.is_flowing = True  # some layer of this step has a gradient
        self.layers: frozenset[int] = frozenset()
        self._knows_calls = False

    @property
    def is_calm(self) -> bool:
        return not self.streak.length.any()

    def follow(self, view: FrameView) -> None:
        outputs, modules = view.row("activation_zero_fraction"), view.ids("activation")
        if outputs is not None and modules is not None:
            self._knows_calls = True
            measured = ~np.isnan(outputs)
            self.silent[modules[measured]] = outputs[measured] == 1
        zeros, states, ids = view.row("gradient_zero_fraction"), view.row("gradient_state"), view.ids("gradient")
        given, used = view.row("gradient_max_abs"), view.row("stepped_gradient_max_abs")
        broken = view.row("stepped_gradient_nonfinite_count")
        self.is_informed = False
        if zeros is None or states is None or ids is None or given is None or used is None or broken is None:
            return
        if view.skipped or view.scalar("loss") == 0:
            return
        self.is_informed = True
        erased = self.erased[ids] = _is_erased(given, used, broken)
        zero = ((zeros == 1) | erased) & (states == GradientState.PRESENT)
        flows = ids[(zeros < 1) & ~erased]
        self._steady[flows[self.streak.length[flows] > 0]] = 0
        self._steady[flows] = np.minimum(self._steady[flows] + 1, int(self.steady))
        if not zero.any():
            if self.streak.length.any():
                self._end(ids[~np.isnan(zeros)])
                self._sort(view, is_flowing=True)
            return
        self._end(ids[~zero & ~np.isnan(states)])
        without = ids[zero]
        calls = view.calls_now(without)
        if calls is not None:
            self._ran[without] |= calls > 0
            self._rests[without] |= calls == 0
            without = without[~(calls == 0)]  # NaN: not known, so counted
        self.streak.hold(without, view.step)
        self._sort(view, is_flowing=len(flows) > 0)

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        """Steps with a gradient are counted."""
        if (self._steady == self.steady).all():
            return
        counts, at = ~batch.skipped & (batch.scalar("loss") != 0), batch.at("gradient")
        at = counts[at] & (first <= at) & (at < last)
        if at.any():
            flows, ids = (batch.row("gradient_zero_fraction")[at] < 1).sum(axis=0), batch.ids("gradient")
            self._steady[ids] = np.minimum(self._steady[ids] + flows, int(self.steady))

    def _end(self, ids: NDArray[np.int32]) -> None:
        self.streak.end(ids)
        self._ran[ids] = False

    def _sort(self, view: FrameView, is_flowing: bool) -> None:
        self.is_flowing, layout = is_flowing, view.layout
        due = self._lasted(view) | (self._due & (self.streak.length > 0))
        if np.array_equal(due, self._due):
            return
        self._due = due
        # A bias counts beside the weight of the same module: by symmetry some biases change nothing.
        owners = {layout.layers[i].group for i in np.flatnonzero(due & ~layout.is_bias).tolist()}
        self.layers = frozenset(i for i in np.flatnonzero(due).tolist() if layout.layers[i].group in owners)

    def _lasted(self, view: FrameView) -> Mask:
        patience = int(self.patience if self.is_flowing else self.patience_of_all)
        if not self.is_flowing and self._has_zero_weights(view):
            patience = int(self.patience_with_zero_weights)
        due = self.streak.lasted(patience)
        if self._knows_calls:
            # A block that is skipped has a zero gradient too, where gradients are cleared to zero.
            due &= self._ran | (~self._rests & (self.streak.length >= 3 * patience))
        if self.is_flowing:
            steady = (self._steady == self.steady) & ~self._rests & (self.streak.length >= self.patience_if_cut)
            if steady.any():
                is_cut = _is_cut(view.layout, steady)
                due |= steady & (self.streak.lasted(int(self.patience_after_steady)) | is_cut)
        return due | (self.erased & self.streak.lasted(int(self.patience_if_erased)))

    def _has_zero_weights(self, view: FrameView) -> bool:
        norms, ids = view.row("weight_norm"), view.ids("weight")
        if norms is None or ids is None:
            return False
        return bool(((norms == 0) & (self.streak.length[ids] > 0) & ~view.layout.is_bias[ids]).any())


def _is_cut(layout: LayerIndex, zero: Mask) -> bool:
    """Do these layers hold every weight from the input up to some place, and none behind it?"""
    weights = ~layout.is_bias & layout.is_trainable & np.isfinite(layout.module_order)
    weights[[layer.id for layer in layout.layers.modules]] = False
    place = layout.module_order[zero & weights].max(initial=-1.0)
    return place >= 0 and bool(np.array_equal(zero & weights, weights & (layout.module_order <= place)))
