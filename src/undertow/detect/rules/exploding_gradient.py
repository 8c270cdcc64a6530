"""GRD002."""

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
from undertow.detect.features.matrices import Matrices, depth_trend, matrices_of
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Pace, Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.layers import LayerKind
from undertow.schema.severity import Severity


class ExplodingGradient:
    """Gradients grow out of proportion: through depth, through time, or from step to step.

    What it sees
    ------------
    Three things, none of which depends on the scale of the loss. Depth: the logarithm of the typical gradient
    element rises by three decades or more from the last weight matrix to the first, at three measured steps. Through
    time, in the first steps: gradient norm times weight norm over the loss, that is, by what share the loss changes
    when the weight does. Healthy weights start below 30; it speaks above 100 for recurrent layers and modules that
    run many times per step, above 1,000 for others. From step to step: the norm of all gradients is a thousand times
    that of the first steps, at three measured steps, while the loss is above its start.

    Why it is bad
    -------------
    One step throws the weights far away from where the gradient was valid. The loss jumps, turns NaN, or units die
    for good. Recurrent weights whose largest singular value is above one are the classic cause, weights that start
    too large and too high a learning rate the common ones.

    When it is wrong
    ----------------
    Recurrent networks that clip live with large gradients: there the bounds are a hundred times as high, unless a step
    throws the weights about all the same. Gradients that start near zero on purpose (zero-initialised branches) grow a
    thousandfold in health; there the loss falls, and nothing is said. A part with a small loss of its own has small
    gradients beside the trunk: fewer than six matrices must rise evenly. One bad batch is a spike (GRD006). In the zoo
    of healthy trainings the gradient grows 13-fold at most and the first sensitivity is 22 at most.

    References
    ----------
    Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", 2013 (arXiv 1211.5063).
    Groeneveld et al., "OLMo 2", 2024 (arXiv 2501.00656): growth of activations and gradients over depth.
    """

    code: ClassVar[str] = "GRD002"
    pace: ClassVar[Pace] = ("gradient", 3)

    def __init__(self) -> None:
        self._condition = Condition("exploding")
        self._inverted = 0  # measured steps in a row with gradients that grow towards the input
        self._grown = 0
        self._sensitive = 0
        self._since = {"depth": 0, "growth": 0, "start": 0}
        self._firsts: list[float] = []  # norms of all gradients in the first measured steps
        self._first = math.nan  # the middle of them
        self._measured = 0
        self._began_so = False  # the finding is open for what the first steps showed
        self._largest_loss = 0.0
        self._repeated: NDArray[np.bool_] = np.zeros(0, bool)  # recurrent, or run many times per step

    def grow(self, count: int) -> None:
        """Nothing that would have to be kept over a new layout."""
        self._repeated = np.zeros(0, bool)

    @property
    def resting(self) -> bool:
        early = (
            self._measured < thresholds.EXPLODING_FIRST_STEPS or len(self._firsts) < thresholds.EXPLODING_FIRST_STEPS
        )
        return not (early or self._inverted or self._grown or self._condition.is_open)

    def news(self, batch: FrameBatch) -> Flags:
        """Of models too shallow to be judged by depth: steps with a gradient far above the first."""
        if len(matrices_of(batch.layout)) >= thresholds.GRADIENT_DEPTH_LEAST_MATRICES:
            return np.ones(len(batch), bool)
        return ~(batch.scalar("gradient_norm_total") / self._first < thresholds.EXPLODING_GROWTH)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        losses = [abs(loss.value) for loss in batch.losses[first:last] if loss is not None]
        self._largest_loss = max([self._largest_loss, *losses])
        if len(matrices_of(batch.layout)):
            shown = batch.at("gradient")
            shown = shown[(first <= shown) & (shown < last)]
            self._measured += int(np.count_nonzero(~batch.skipped[shown]))
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        loss = view.loss
        if loss is not None:
            self._largest_loss = max(self._largest_loss, abs(loss.value))
        if view.skipped or view.ids("gradient") is None:
            return ()
        matrices = matrices_of(view.layout)
        if not len(matrices):
            return ()
        self._measured += 1
        total = view.scalar("gradient_norm_total")
        if len(self._firsts) < thresholds.EXPLODING_FIRST_STEPS and 0 < total < math.inf:
            self._firsts.append(total)
            self._first = float(np.median(self._firsts))
        through_time = self._early(view, matrices)
        inverted = self._depth(view, matrices)
        growth = self._growth(view, total)
        if through_time is not None:
            self._began_so = True
            return self._condition.hold(("start", *through_time), lambda: self._start(view, through_time))
        if inverted is not None:
            return self._condition.hold(("depth", *inverted), lambda: self._inversion(view, inverted))
        if growth is not None:
            return self._condition.hold("growth", lambda: self._growing(view, total, growth))
        if self._condition.is_open and self._began_so and not has_learnt(loss):
            return self._condition.stay()  # how it began is not judged again; it is over when the loss falls
        return self._condition.end()

    # -- the three conditions -------------------------------------------------------------------------------

    def _early(self, view: FrameView, matrices: Matrices) -> tuple[int, ...] | None:
        """Matrices to which the loss is far too sensitive; judged in the first measured steps only."""
        if self._measured > thresholds.EXPLODING_FIRST_STEPS or not self._largest_loss or view.ids("update") is None:
            return None
        if len(self._repeated) != len(matrices):
            kinds = [view.layout.layers[int(i)].kind is LayerKind.RECURRENT for i in matrices.ids]
            self._repeated = np.array(kinds, bool)
        calls = view.calls(matrices.ids.astype(np.int32))
        if calls is not None:
            self._repeated |= calls >= thresholds.EXPLODING_CALLS
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            # The weight before the step: after it, it is what the explosion left.
            length, ratio = matrices.values(view, "update_norm"), matrices.values(view, "update_ratio")
            before = np.where(ratio > 0, length / ratio, matrices.values(view, "weight_norm"))
            sensitivity = matrices.values(view, "gradient_norm") * before / self._largest_loss
        bound = np.where(self._repeated, thresholds.EXPLODING_THROUGH_TIME, thresholds.EXPLODING_AT_START)
        if (
            view.scalar("clip_coefficient") < 1
            and not (matrices.update_ratios(view) > thresholds.EXPLODING_UPDATE).any()
        ):
            bound = bound * thresholds.EXPLODING_CLIPPED  # whoever clips has expected it
        over = np.isfinite(sensitivity) & (sensitivity > bound)
        if not over.any():
            self._sensitive = 0
            return None
        if self._sensitive == 0:
            self._since["start"] = view.step
        self._sensitive += 1
        # One step is enough where it has already thrown the weights about: there may be no second one.
        thrown = matrices.update_ratios(view)[over] > thresholds.EXPLODING_UPDATE
        if self._sensitive < 2 and not thrown.any() and not (sensitivity[over] > 3 * bound[over]).any():
            return None
        ranked = np.flatnonzero(over)[np.argsort(-sensitivity[over])]
        return tuple(int(i) for i in matrices.ids[ranked])

    def _depth(self, view: FrameView, matrices: Matrices) -> tuple[int, ...] | None:
        if len(matrices) < thresholds.GRADIENT_DEPTH_LEAST_MATRICES:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            sizes = np.log10(matrices.values(view, "gradient_rms"))
        trend = depth_trend(sizes)
        few = trend.size < thresholds.EXPLODING_FEW
        least_fit = thresholds.EXPLODING_FIT_OF_FEW if few else thresholds.GRADIENT_DEPTH_FIT
        steep = -trend.rise >= thresholds.GRADIENT_DEPTH_DECADES and trend.fit >= least_fit
        if not steep or trend.size < thresholds.GRADIENT_DEPTH_LEAST_MATRICES:
            self._inverted = 0
            return None
        if self._inverted == 0:
            self._since["depth"] = view.step
        self._inverted += 1
        if self._inverted < thresholds.EXPLODING_PATIENCE:
            return None
        large = np.isfinite(sizes) & (sizes > np.nanmin(sizes) + thresholds.GRADIENT_DEPTH_DECADES)
        return tuple(int(i) for i in matrices.ids[large])

    def _growth(self, view: FrameView, total: float) -> float | None:
        """How many times the first gradients; None when that is healthy."""
        loss = view.loss
        if len(self._firsts) < thresholds.EXPLODING_FIRST_STEPS or not math.isfinite(total):
            return None
        times = total / self._first
        if times < thresholds.EXPLODING_GROWTH or loss is None or loss.gain >= 0:
            self._grown = 0
            return None
        if self._grown == 0:
            self._since["growth"] = view.step
        self._grown += 1
        return times if self._grown >= thresholds.EXPLODING_PATIENCE else None

    # -- in words ---------------------------------------------------------------------------------------------

    def _start(self, view: FrameView, layers: tuple[int, ...]) -> Verdict:
        layout = view.layout
        place = matrices_of(layout).ids == layers[0]
        norm = float(view.all_layers("gradient_norm")[layers[0]])
        evidence = Evidence(
            "gradient_norm", layout.path(layers[0]), norm, None,
            f"at step {view.step}; with a loss of {self._largest_loss:.3g}, a change of the weight by 1 % changes the "
            "loss by more than its own size",
        )  # fmt: skip
        through = " through time" if bool(self._repeated[place][0]) else ""
        summary = f"Gradients explode{through} from the first steps on: {name_layers(layout, layers)}."
        return self._verdict("start", Severity.SEVERE, layers, 0.85, summary, (evidence,))

    def _inversion(self, view: FrameView, layers: tuple[int, ...]) -> Verdict:
        sizes = view.all_layers("gradient_rms")
        matrices = matrices_of(view.layout)
        least = float(np.nanmin(sizes[matrices.ids]))
        evidence = Evidence(
            "gradient_rms", view.layout.path(layers[0]), float(sizes[layers[0]]), least,
            "a typical gradient element, beside that of the smallest matrix at the same step",
        )  # fmt: skip
        summary = (
            f"Gradients grow by a factor of 10^{math.log10(sizes[layers[0]] / least):.1f} on their way to the first "
            f"layers: {name_layers(view.layout, layers)}."
        )
        return self._verdict("depth", Severity.SEVERE, layers, 0.8, summary, (evidence,))

    def _growing(self, view: FrameView, total: float, times: float) -> Verdict:
        evidence = Evidence(
            "gradient_norm_total", None, total, self._first, f"norm of all gradients at step {view.step}"
        )
        summary = f"Gradients have grown {times:,.0f}-fold since the first steps, and the loss is above its start."
        return self._verdict("growth", Severity.SEVERE, (), 0.8, summary, (evidence,))

    def _verdict(
        self, how: str, severity: Severity, layers: tuple[int, ...], confidence: float, summary: str,
        evidence: tuple[Evidence, ...],
    ) -> Verdict:  # fmt: skip
        return Verdict(self._condition.key, True, severity, layers, self._since[how], confidence, summary, evidence)
