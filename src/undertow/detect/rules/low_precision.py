"""NUM005."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.matrices import Matrices, Values, matrices_of, middle, middles
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.wording import count_of, name_layers
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

_HALF_ROUNDING = 2.0**-12
_NOT_OF_GRADIENTS = frozenset({"activation", "step_skipped"})


class LowPrecision:
    """Numbers fall out of the range of half precision: gradients turn to zero, or outputs to infinity.

    What it sees
    ------------
    Underflow, in one of three ways. At the bottom of the range: most gradient elements are exactly zero, those left
    are tiny, and none is smaller than the smallest number of fp16; or all are zero, of a model in fp16 or a loss
    multiplied by less than a thousandth, though the units are alive. On the way to the optimizer: tensors with small
    gradients lose most of them between the end of backward and the step, those with larger gradients keep theirs;
    clipping would do the opposite, or the same to all. Inside the network: nearly all gradient elements of the first
    layers are exactly zero, fewer of the later ones, though the units are alive. Overflow: a module's output is
    infinite while the largest finite value there or just before it is at the limit of fp16, 65,504. A loss scaler that
    skips one step after the other. And weights kept in half precision of which fewer than three in a hundred can have
    changed at each of ten measured steps, by the length of the updates: the others are rounded back to what they were.

    Why it is bad
    -------------
    A gradient below 6e-8 is zero in fp16, and layers far from the loss have the smallest ones: they stop learning
    first. An overflow turns into NaN in the next layer.

    When it is wrong
    ----------------
    Zeros alone are healthy: ReLU networks and embeddings are full of them. So is a scaler that skips a few steps while
    it finds its scale. Updates become small at the end of a schedule, and of a training that has learnt nearly all
    there is: neither is reported. Gradients that are small because of the scale of the loss are not zero in fp32.

    References
    ----------
    Micikevicius et al., "Mixed Precision Training", 2017 (arXiv 1710.03740).
    PyTorch documentation, "Automatic mixed precision", section "Gradient scaling".
    """

    code: ClassVar[str] = "NUM005"

    def __init__(self) -> None:
        self._underflow, self._overflow = Condition("underflow"), Condition("overflow")
        self._skipping, self._rounding = Condition("skipping"), Condition("rounding")
        self._rounded = 0  # measured steps in a row
        self._rounded_since = 0
        self._peak_rate = 0.0
        self._lengths = {"range": 0, "step": 0, "inside": 0}  # measured steps in a row
        self._since = 0
        self._skips = 0
        self._first_skip = 0
        self._dead = math.nan  # largest share of dead or saturated units of any module, when last known
        self._factor = math.nan  # what the loss is multiplied by, when last known
        self._alive = math.nan  # smallest share of outputs that are not zero

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        conditions = (self._underflow, self._overflow, self._skipping, self._rounding)
        return not (self._skips or any(self._lengths.values()) or any(one.is_open for one in conditions))

    def news(self, batch: FrameBatch) -> Flags:
        """Frames with outputs or a scaler, and those whose gradients may show a sign."""
        out = batch.with_any(_NOT_OF_GRADIENTS)
        matrices = matrices_of(batch.layout)
        if not batch.has("gradient") or not len(matrices):
            return out
        if batch.layout.is_low_precision[matrices.ids].all():
            return np.ones(len(batch), bool)
        clip = batch.scalar("clip_coefficient")
        out |= ~np.isnan(clip) & (clip != 1.0)
        zeros = matrices.rows(batch, "gradient_zero_fraction")
        many = middles(zeros) > thresholds.UNDERFLOW_ZEROS
        many |= middles(zeros[:, : max(len(matrices) // 3, 1)]) > thresholds.UNDERFLOW_ZEROS_INSIDE
        out[batch.frames_with("gradient")] |= many
        return out

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        said = [*self._watch_scaler(view)]
        if view.ids("activation") is not None:
            said += self._watch_outputs(view)
        if view.skipped or view.ids("gradient") is None or view.scalar("loss") == 0:
            return tuple(said)
        matrices = matrices_of(view.layout)
        if len(matrices):
            said += self._watch_gradients(view, matrices)
            if view.layout.is_low_precision[matrices.ids].all():
                said += self._watch_rounding(view, matrices)
        return tuple(said)

    # -- the scaler -------------------------------------------------------------------------------------------

    def _watch_scaler(self, view: FrameView) -> tuple[Verdict, ...]:
        if not view.skipped:
            if "step_skipped" in view.frame.scalars:
                self._skips = 0
                return self._skipping.end()
            return ()
        if self._skips == 0:
            self._first_skip = view.step
        self._skips += 1
        scale = view.scalar("loss_scale")
        hopeless = self._skips >= thresholds.SKIPS_AT_SMALL_SCALE and scale < 1.0
        if self._skips < thresholds.SKIPS_IN_A_ROW and not hopeless:
            return ()
        return self._skipping.hold(True, lambda: self._skipping_verdict(view, scale))

    def _skipping_verdict(self, view: FrameView, scale: float) -> Verdict:
        how = f"after {count_of(self._skips, 'step')} skipped in a row: no scale makes these gradients finite"
        evidence = Evidence("loss_scale", None, scale, None, how)
        summary = "The loss scaler skips every step: gradients are infinite or NaN at any scale, and nothing is learnt."
        return Verdict(self._skipping.key, True, Severity.SEVERE, (), self._first_skip, 0.95, summary, (evidence,))

    # -- weights ----------------------------------------------------------------------------------------------

    def _watch_rounding(self, view: FrameView, matrices: Matrices) -> tuple[Verdict, ...]:
        """Weights kept in few digits, of which hardly any changes at a step though much is left to learn."""
        rate = view.frame.scalars.get("lr", math.nan)
        self._peak_rate = max(self._peak_rate, rate)
        if view.ids("update") is None:
            return self._rounding.stay()
        lengths, usual = matrices.values(view, "update_norm"), matrices.values(view, "weight_abs_p50")
        sizes = np.array([view.layout.layers[int(i)].parameter_count for i in matrices.ids], np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            # A weight that changes does so by two roundings at least, so this is twice the root of their share.
            moved = (lengths / np.sqrt(sizes) / (view.layout.rounding[matrices.ids] * usual) / 2.0) ** 2
        known = np.isfinite(moved) & (lengths > 0)
        still = known & (moved < thresholds.ROUNDED_MOVES)
        ends = rate < thresholds.ROUNDED_RATE * self._peak_rate  # a schedule that runs out takes the updates with it
        done = view.loss is not None and view.loss.remaining < thresholds.ROUNDED_REMAINING
        if ends or done or not known.any() or still.sum() <= known.sum() / 2:
            self._rounded = 0
            return self._rounding.end()
        if not self._rounded:
            self._rounded_since = view.step
        self._rounded += 1
        if self._rounded < thresholds.ROUNDED_FRAMES:
            return self._rounding.stay()
        return self._rounding.hold(True, lambda: self._rounding_verdict(view, matrices, middle(moved[still])))

    def _rounding_verdict(self, view: FrameView, matrices: Matrices, share: float) -> Verdict:
        layer = view.layout.layers[int(matrices.ids[0])]
        kind = layer.dtype.removeprefix("torch.")
        how = f"share of the weights that can have changed at step {view.step}; {kind} drops changes below "
        how += f"{view.layout.rounding[layer.id]:.1g} of a weight"
        evidence = Evidence("update_norm", None, share, 1.0, how)
        summary = (
            f"Updates are rounded away: the weights are {kind}, and at most {max(1, math.ceil(100 * share))} % of them "
            "change at a step. The others keep the values they had, however long they are pushed."
        )
        return Verdict(self._rounding.key, True, Severity.MODERATE, (), self._rounded_since, 0.8, summary, (evidence,))

    # -- outputs ----------------------------------------------------------------------------------------------

    def _watch_outputs(self, view: FrameView) -> tuple[Verdict, ...]:
        dead, flat = view.row("activation_dead_fraction"), view.row("activation_saturated_fraction")
        zeros = view.row("activation_zero_fraction")
        assert dead is not None
        assert flat is not None
        assert zeros is not None
        silent = np.fmax(dead, flat)
        if not np.isnan(silent).all():
            self._dead = float(np.nanmax(silent))
        if not np.isnan(zeros).all():
            self._alive = 1.0 - float(np.nanmax(zeros))
        counts, ids = view.row("activation_nonfinite_count"), view.ids("activation")
        assert counts is not None
        assert ids is not None
        if view.skipped or not (counts > 0).any():
            return self._overflow.end()
        structure = structure_of(view.layout)
        bad = {int(i) for i in ids[counts > 0]}
        first = next((i for i in structure.sequence if i in bad), None)
        if first is None:
            return ()
        largest = view.all_layers("activation_max_abs")
        # The module itself, in half precision, or the one before it, whose output was then cast.
        before = structure.before(first)
        if thresholds.NEAR_HALF_LIMIT < largest[first] <= thresholds.HALF_LIMIT:
            place = first
        elif before >= 0 and thresholds.NEAR_HALF_LIMIT < largest[before] < thresholds.NOT_HALF:
            place = before
        else:
            return self._overflow.stay()
        return self._overflow.hold(place, lambda: self._overflow_verdict(view, place, first, largest))

    def _overflow_verdict(self, view: FrameView, place: int, first: int, largest: NDArray[np.float32]) -> Verdict:
        layout = view.layout
        how = f"largest finite output at step {view.step}; half precision ends at 65,504"
        evidence = (
            Evidence("activation_max_abs", layout.path(place), float(largest[place]), thresholds.HALF_LIMIT, how),
            Evidence("activation_nonfinite_count", layout.path(first), None, 0.0, "the first output with infinities"),
        )
        summary = f"The output of {layout.path(place)} overflows half precision."
        return Verdict(self._overflow.key, True, Severity.CRITICAL, (place,), view.step, 0.9, summary, evidence)

    # -- gradients --------------------------------------------------------------------------------------------

    def _watch_gradients(self, view: FrameView, matrices: Matrices) -> tuple[Verdict, ...]:
        zeros = matrices.values(view, "gradient_zero_fraction")
        signs = {
            "range": self._at_the_bottom(view, matrices, zeros),
            "step": self._lost_before_the_step(view, matrices),
            "inside": self._fading_though_alive(view, matrices, zeros),
        }
        if not any(self._lengths.values()) and any(signs.values()):
            self._since = view.step
        for name, holds in signs.items():
            self._lengths[name] = self._lengths[name] + 1 if holds else 0
        patience = {"range": thresholds.UNDERFLOW_FRAMES, "step": thresholds.UNDERFLOW_FRAMES,
                    "inside": thresholds.UNDERFLOW_FRAMES_INSIDE}  # fmt: skip
        due = [name for name, length in self._lengths.items() if length >= patience[name]]
        if not due:
            return self._underflow.stay() if any(signs.values()) else self._underflow.end()
        return self._underflow.hold(due[0], lambda: self._underflow_verdict(view, matrices, due[0], zeros))

    def _at_the_bottom(self, view: FrameView, matrices: Matrices, zeros: Values) -> bool:
        if not middle(zeros) > thresholds.UNDERFLOW_ZEROS:
            return False
        there = zeros < 1
        if not there.any():
            return self._alive > thresholds.UNDERFLOW_ALIVE and self._suggests_half(view, matrices)
        below = matrices.values(view, "gradient_fp16_underflow")[there]
        largest = matrices.values(view, "gradient_max_abs")[there]
        return not (below > 0).any() and middle(largest) < thresholds.UNDERFLOW_LARGEST

    def _suggests_half(self, view: FrameView, matrices: Matrices) -> bool:
        """Weights in fp16, or a loss so small that its gradients are below fp16: what fp32 would not mind."""
        factor = abs(view.scalar("loss_factor"))
        if not math.isnan(factor):
            self._factor = factor
        in_half = bool((view.layout.rounding[matrices.ids] == _HALF_ROUNDING).any())
        return in_half or 0 < self._factor < thresholds.UNDERFLOW_FACTOR

    def _lost_before_the_step(self, view: FrameView, matrices: Matrices) -> bool:
        clip = view.scalar("clip_coefficient")
        if math.isnan(clip) or clip == 1.0:
            return False
        before, after = matrices.values(view, "gradient_norm"), matrices.values(view, "stepped_gradient_norm")
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = after / before
        lost = kept < thresholds.UNDERFLOW_KEPT
        if lost.sum() < max(2, np.count_nonzero(np.isfinite(kept)) / 2):
            return False
        # Whatever keeps its gradient has larger elements than whatever lost it: by size, not by place.
        sizes, norms, stepped = (view.row(name) for name in ("gradient_rms", "gradient_norm", "stepped_gradient_norm"))
        assert sizes is not None
        assert norms is not None
        assert stepped is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            share = stepped / norms
        some = sizes[share > thresholds.UNDERFLOW_KEPT_WHOLE]
        none = sizes[share < thresholds.UNDERFLOW_KEPT]
        by_size = bool(len(some)) and float(np.median(some)) > 2.0 * float(np.median(none))
        return by_size and not _smaller_ones_are_left(view)

    def _fading_though_alive(self, view: FrameView, matrices: Matrices, zeros: Values) -> bool:
        """Nearly all zeros at the first matrices, fewer towards the loss, and no unit to blame."""
        if len(matrices) < 3 or not self._dead < thresholds.UNDERFLOW_DEAD or has_learnt(view.loss):
            return False
        if not self._alive > thresholds.UNDERFLOW_ALIVE:
            return False
        first, last = middle(zeros[: max(len(zeros) // 3, 1)]), float(zeros[-1])
        # Numbers fade one by one. Where all are zero behind one place and next to none before it, something cuts them.
        some = (zeros > thresholds.UNDERFLOW_SOME) & (zeros < 1)
        fades = bool(some.any())
        nearly = (zeros > thresholds.UNDERFLOW_ZEROS_INSIDE) & (zeros < 1)
        if fades and not nearly.any():  # ReLUs leave some zeros, too; what fades is smaller than what comes before it
            sizes = matrices.values(view, "gradient_rms")
            fades = bool(sizes[np.flatnonzero(some)[0]] < thresholds.UNDERFLOW_FADED * sizes[-1])
        return first > thresholds.UNDERFLOW_ZEROS_INSIDE and last < first - 0.3 and fades

    def _underflow_verdict(self, view: FrameView, matrices: Matrices, how: str, zeros: Values) -> Verdict:
        layout = view.layout
        if how == "step":
            with np.errstate(divide="ignore", invalid="ignore"):
                kept = matrices.values(view, "stepped_gradient_norm") / matrices.values(view, "gradient_norm")
            chosen = kept < thresholds.UNDERFLOW_KEPT
            shares, quantity, what = kept, "stepped_gradient_norm", "share of its gradient norm left at the step"
        else:
            chosen = zeros > thresholds.UNDERFLOW_ZEROS
            shares, quantity, what = zeros, "gradient_zero_fraction", "share of its gradient elements exactly zero"
        layers = tuple(int(i) for i in matrices.ids[chosen])
        evidence = [
            Evidence(quantity, layout.path(int(matrices.ids[place])), float(shares[place]), None, what)
            for place in np.flatnonzero(chosen)[:3]
        ]
        if math.isfinite(self._dead):
            how_alive = "largest share of dead or saturated units in any module: the zeros do not come from there"
            evidence.append(Evidence("activation_dead_fraction", None, self._dead, None, how_alive))
        summary = f"Gradients underflow: most elements of {name_layers(layout, layers)} are lost to zero."
        confidence = {"range": 0.9, "step": 0.8, "inside": 0.7}[how]
        return Verdict(
            self._underflow.key, True, Severity.SEVERE, (), self._since, confidence, summary, tuple(evidence)
        )  # the precision is at fault, no layer of it


def _smaller_ones_are_left(view: FrameView) -> bool:
    """A layer that lost all it had had larger elements than one that did not: rounding spares no smaller ones."""
    before, after = view.row("gradient_max_abs"), view.row("stepped_gradient_max_abs")
    if before is None or after is None:
        return False
    lost, left = before[(after == 0) & (before > 0)], before[(after > 0) & (before > 0)]
    return bool(len(lost) and len(left)) and float(left.min()) < 0.5 * float(lost.max())
