"""GRD001."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.features.matrices import DepthTrend, Matrices, Values, depth_trend, matrices_of, middle
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Pace, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class VanishingGradient:
    """Gradients fade on their way from the loss to the first layers.

    What it sees
    ------------
    A straight line through the logarithm of the typical gradient element (root mean square) of every weight matrix,
    from the first in execution order to the last. It speaks when the line falls by three decades or more towards the
    input, explains most of the differences between layers, and stays so while the loss makes no progress: at five
    measured steps when the first layers hardly move, at twenty-five when the optimizer makes up for small gradients,
    as Adam does, or the line falls by 2.2 decades only. Only differences between layers count, so the
    scale of the loss does not matter.
    It also speaks of two or more matrices anywhere whose gradients are less than 1e-10 of the largest one, though not
    zero, and whose updates are below rounding, at six measured steps without progress: what a closed gate leaves.

    Why it is bad
    -------------
    The first layers learn a thousand times more slowly than the last, or not at all: the network is then no deeper
    than its last layers. Typical causes are sigmoids or tanhs one after another, weights that start too small, and
    many layers without skip connections or normalisation.

    When it is wrong
    ----------------
    A plain network of a dozen layers can start like this and still learn under Adam; the finding then ends when the
    loss falls. Vanishing through time inside a recurrent layer cannot be seen: all steps share one gradient. In the zoo
    of healthy trainings the line falls by 1.3 decades at most.

    References
    ----------
    Hochreiter, "The vanishing gradient problem during learning recurrent neural nets", 1998.
    Glorot, Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
    """

    code: ClassVar[str] = "GRD001"
    pace: ClassVar[Pace] = ("gradient", 5)

    def __init__(self) -> None:
        self._condition, self._cut = Condition("depth"), Condition("cut")
        self._cut_length = self._cut_since = 0
        self._length = 0  # measured steps in a row
        self._since = 0
        self._starved = False  # the matrices furthest from the loss hardly move
        self._latest: tuple[Values, DepthTrend] | None = None  # the sizes of such a step, and their line

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.skipped:
            return ()
        matrices = matrices_of(view.layout)
        if len(matrices) < thresholds.GRADIENT_DEPTH_LEAST_MATRICES:
            return ()
        return (*self._observe_depth(view, matrices), *self._observe_cut(view, matrices))

    def _observe_depth(self, view: FrameView, matrices: Matrices) -> tuple[Verdict, ...]:
        if view.ids("gradient") is not None and not self._measure(view, matrices):
            return self._condition.end()
        if self._length == 0:
            return ()
        if has_learnt(view.loss):
            return self._condition.end()
        clear = self._starved and self._latest is not None and self._latest[1].rise > thresholds.GRADIENT_DEPTH_DECADES
        patience = thresholds.GRADIENT_DEPTH_PATIENCE if clear else thresholds.GRADIENT_DEPTH_PATIENCE_IN_DOUBT
        # Where gradients are measured rarely, a few of them and a loss that stays where it is will do.
        rarely = self._length >= 3 and view.step - self._since >= 4 * patience
        if self._latest is None or (self._length < patience and not rarely):
            return self._condition.stay()
        sizes, trend = self._latest
        if len(sizes) != len(matrices):
            return self._condition.stay()
        return self._condition.hold(True, lambda: self._verdict(view, matrices, sizes, trend))

    def _observe_cut(self, view: FrameView, matrices: Matrices) -> tuple[Verdict, ...]:
        """Matrices that get next to nothing wherever they are, while others get what they need."""
        if self._condition.is_open or has_learnt(view.loss):
            self._cut_length = 0
            return self._cut.end()
        if view.ids("gradient") is None or view.ids("update") is None:
            return self._cut.stay()
        sizes = matrices.values(view, "gradient_rms")
        largest = float(np.fmax.reduce(sizes))
        cut = (sizes > 0) & (sizes < thresholds.CUT_OFF * largest)
        cut &= matrices.update_ratios(view) < thresholds.CUT_OFF_UPDATE
        if cut.sum() < 2:
            self._cut_length = 0
            return self._cut.end()
        if self._cut_length == 0:
            self._cut_since = view.step
        self._cut_length += 1
        if self._cut_length < thresholds.CUT_OFF_FRAMES:
            return ()
        return self._cut.hold(True, lambda: self._cut_verdict(view, matrices, np.flatnonzero(cut), sizes))

    def _cut_verdict(self, view: FrameView, matrices: Matrices, places: NDArray[np.int64], sizes: Values) -> Verdict:
        layout = view.layout
        layers = tuple(int(i) for i in matrices.ids[places])
        last, largest = int(matrices.ids[np.nanargmax(sizes)]), float(np.nanmax(sizes))
        how = f"a typical gradient element, beside that of {layout.path(last)} at the same step"
        evidence = tuple(
            Evidence("gradient_rms", layout.path(int(matrices.ids[place])), float(sizes[place]), largest, how)
            for place in places[:3]
        )
        summary = (
            f"Next to no gradient reaches {name_layers(layout, layers)}: less than a ten-billionth of what other "
            "layers get. Something in their way is closed, as a saturated gate is."
        )
        return Verdict(self._cut.key, True, Severity.SEVERE, layers, self._cut_since, 0.9, summary, evidence)

    def _measure(self, view: FrameView, matrices: Matrices) -> bool:
        """False when gradients do not fade."""
        with np.errstate(divide="ignore", invalid="ignore"):
            sizes = np.log10(matrices.values(view, "gradient_rms"))
        trend = depth_trend(sizes)
        if trend.size < thresholds.GRADIENT_DEPTH_LEAST_MATRICES:
            return True  # this step does not tell
        if trend.rise < thresholds.GRADIENT_DEPTH_DECADES_IN_DOUBT or trend.fit < thresholds.GRADIENT_DEPTH_FIT:
            if self._condition.is_open and trend.rise > thresholds.GRADIENT_DEPTH_DECADES_TO_END:
                return True
            self._length = 0
            return False
        if self._length == 0:
            self._since = view.step
        self._length += 1
        self._latest = sizes, trend
        if view.ids("update") is not None:
            first = matrices.update_ratios(view)[: max(len(matrices) // 3, 1)]
            self._starved = middle(first) < thresholds.GRADIENT_DEPTH_STARVED
        return True

    def _verdict(self, view: FrameView, matrices: Matrices, sizes: Values, trend: DepthTrend) -> Verdict:
        layout = view.layout
        layers = [int(i) for i in matrices.ids[_faded(sizes)]]
        last, first = int(matrices.ids[np.nanargmax(sizes)]), layers[0]
        evidence = [
            Evidence("gradient_rms", layout.path(layers[0]), float(10 ** sizes[matrices.ids == first][0]),
                     float(10 ** np.nanmax(sizes)),
                     f"a typical gradient element, beside that of {layout.path(last)} at the same step"),
            Evidence("gradient_rms", None, trend.rise, None,
                     f"decades lost over {trend.size} matrices; a straight line explains {trend.fit:.0%} of it"),
        ]  # fmt: skip
        if view.loss is not None:
            evidence.append(
                Evidence("loss", None, view.loss.level, view.loss.start, "the loss is about where it started")
            )
        summary = (
            f"Gradients fade by a factor of 10^{trend.rise:.1f} from the loss to the first layers: "
            f"{name_layers(layout, layers)} hardly learn."
        )
        confidence = 0.9 if self._starved else 0.8
        return Verdict(
            self._condition.key, True, Severity.SEVERE, tuple(layers), self._since, confidence, summary, tuple(evidence)
        )


def _faded(sizes: Values) -> NDArray[np.int64]:
    """Places of the matrices with the smallest gradients.

    When most of the loss happens at one place, what lies just before that place is named first: there, not at the
    input, is the cause.
    """
    known = np.flatnonzero(np.isfinite(sizes))
    values = sizes[known]
    small = known[values < values.max() - thresholds.GRADIENT_DEPTH_DECADES_IN_DOUBT]
    if not len(small):
        small = known[[int(values.argmin())]]
    drops = np.diff(values)
    place = int(drops.argmax())
    if drops[place] > thresholds.GRADIENT_DEPTH_GAP_SHARE * (values.max() - values.min()):
        return known[: place + 1][::-1]
    return small
