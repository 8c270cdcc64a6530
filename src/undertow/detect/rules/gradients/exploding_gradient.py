"""GRD002: gradients explode."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage
from undertow.detect.features.depth_trend import LEAST_FIT, LEAST_MATRICES, STEEP, chains_of, logarithms
from undertow.detect.features.matrices import Matrices, matrices_of
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import CLIP_GRADIENTS, INITIALISE_FOR_THE_ACTIVATION, LOWER_LEARNING_RATE
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Finding, LayerKind, Remedy, Severity

_TAME_THE_RECURRENCE = Remedy(
    "tame-the-recurrence",
    "Start the recurrent weights orthogonal, so that repeated multiplication neither grows nor shrinks.",
    "layer = $layer\n"
    "for name, parameter in layer.named_parameters():\n"
    '    if "weight_hh" in name:\n'
    "        torch.nn.init.orthogonal_(parameter)",
    "None at the start; long sequences may still need a GRU or LSTM.",
    when_not="The model has no recurrent layer, or its weights are pretrained.",
)


class ExplodingGradient(Condition):
    """Gradients grow out of proportion: through depth, through time, or from step to step.

    What it sees: Three signs, none of which depends on the scale of the loss. Depth: the typical gradient element rises
        by three decades or more from the last weight matrix to the first. The first steps: gradient norm times weight
        norm over the loss, that is, how sensitive the loss is to the weight; healthy weights start below 30, it is
        reported above 100 for recurrent layers and above 1,000 for others. From step to step: all gradients are a
        thousand times those of the first steps while the loss is above its start.
    Why it is bad: One step throws the weights far away from where the gradient was valid. The loss jumps, turns NaN, or
        units die for good. Recurrent weights whose largest singular value is above one are the classic cause, weights
        that start too large and too high a learning rate the common ones.
    When it is wrong: Recurrent networks that clip live with large gradients: there the bounds are a hundred times as
        high, unless a step throws the weights about all the same. Gradients that start near zero on purpose grow a
        thousandfold in healthy runs; there the loss falls. A part with a small loss of its own has small gradients
        beside the trunk: fewer than six matrices must rise evenly. Healthy trainings: 13-fold growth at most, a first
        sensitivity of 22 at most.
    References: Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", 2013 (arXiv
        1211.5063).
        Groeneveld et al., "OLMo 2", 2024 (arXiv 2501.00656): growth of activations and gradients over depth.
    """

    code, variant, formerly = "GRD002", "exploding-gradient", "exploding"
    places = ("initialisation", "rate")
    stage, needs_growth = Stage.STEP, True
    meaning = "Updates of that size undo what was learned, and training diverges sooner or later"
    remedies = (INITIALISE_FOR_THE_ACTIVATION, _TAME_THE_RECURRENCE, CLIP_GRADIENTS, LOWER_LEARNING_RATE)
    pace = ("gradient", 3)

    least_matrices, steep, least_fit = LEAST_MATRICES, STEEP, LEAST_FIT
    few = Limit(6, "matrices; below it the line must fit better")
    least_fit_of_few = Limit(0.9, "two sizes, as of a trunk and a small second loss, fit a line at 0.8")
    first_steps = Limit.start(5, "measured steps that count as the start: later ones are what the first left behind")
    calls = Limit(4, "per step; a module that runs this often is recurrent, whatever its type")
    through_time = Limit(100.0, "gradient norm × weight norm / loss, of recurrent weights; healthy at most 22")
    at_start = Limit(1_000.0, "the same, of other weights")
    clipped = Limit(100.0, "times these bounds, where clipping tames what is left of it")
    thrown = Limit(0.5, "of the weight, in one step: there may be no second one")
    growth = Limit(1_000.0, "times the first gradients; healthy at most 13")
    patience = Limit.chance(3, "measured steps in a row: one bad batch is a spike (GRD006)")

    def __init__(self) -> None:
        self._inverted, self._grown, self._sensitive = Consecutive(), Consecutive(), Consecutive()
        self._firsts: list[float] = []  # norms of all gradients in the first measured steps
        self._first = math.nan  # the middle of them
        self._measured = 0
        self._began_so = False  # the finding is open for what the first steps showed
        self._largest_loss = 0.0
        self._repeated: NDArray[np.bool_] = np.zeros(0, bool)  # recurrent, or run many times per step

    def grow(self, count: int) -> None:
        super().grow(count)
        self._repeated = np.zeros(0, bool)

    def observe(self, view: FrameView) -> Judgement | None:
        if view.loss is not None:
            self._largest_loss = max(self._largest_loss, abs(view.loss.value))
        matrices = matrices_of(view.layout)
        if view.skipped or view.ids("gradient") is None or not len(matrices):
            return None
        self._measured += 1
        total = view.scalar("gradient_norm_total")
        if len(self._firsts) < self.first_steps and 0 < total < math.inf:
            self._firsts.append(total)
            self._first = float(np.median(self._firsts))
        sensitive = self._sensitive_weights(view, matrices)
        large = self._large_before_the_loss(view, matrices)
        has_grown = self._has_grown(view, total)
        if sensitive:
            self._began_so = True
            return self.hold(("start", *sensitive), lambda: self._describe_start(view, sensitive))
        if large:
            return self.hold(("depth", *large), lambda: self._describe_depth(view, large))
        if has_grown:
            return self.hold("growth", lambda: self._describe_growth(view, total))
        if self.is_open and self._began_so and not has_learnt(view.loss):
            return self.stay()  # how it began is not judged again; it is over when the loss falls
        return self.end()

    def _sensitive_weights(self, view: FrameView, matrices: Matrices) -> tuple[int, ...]:
        """Matrices to which the loss is far too sensitive; judged in the first measured steps only."""
        if self._measured > self.first_steps or not self._largest_loss or view.ids("update") is None:
            return ()
        if len(self._repeated) != len(matrices):
            kinds = [view.layout.layers[int(i)].kind is LayerKind.RECURRENT for i in matrices.ids]
            self._repeated = np.array(kinds, bool)
        calls = view.calls(matrices.ids.astype(np.int32))
        if calls is not None:
            self._repeated |= calls >= self.calls
        moved = matrices.update_ratios(view)
        # The weight before the step: after it, it is what the explosion left.
        length, ratio = matrices.values(view, "update_norm"), matrices.values(view, "update_ratio")
        before = np.where(ratio > 0, length / ratio, matrices.values(view, "weight_norm"))
        sensitivity = matrices.values(view, "gradient_norm") * before / self._largest_loss
        bound = np.where(self._repeated, self.through_time, self.at_start)
        if view.scalar("clip_coefficient") < 1 and not (moved > self.thrown).any():
            bound = bound * self.clipped  # whoever clips has expected it
        over = np.isfinite(sensitivity) & (sensitivity > bound)
        if not over.any():
            self._sensitive.end()
            return ()
        is_certain = bool((moved[over] > self.thrown).any() or (sensitivity[over] > 3 * bound[over]).any())
        if self._sensitive.hold(view.step) < 2 and not is_certain:
            return ()
        ranked = np.flatnonzero(over)[np.argsort(-sensitivity[over])]
        return tuple(int(i) for i in matrices.ids[ranked])

    def _large_before_the_loss(self, view: FrameView, matrices: Matrices) -> tuple[int, ...]:
        """Matrices whose gradients are far above the smallest, where gradients rise towards the input."""
        if len(matrices) < self.least_matrices:
            return ()
        every = logarithms(matrices.values(view, "gradient_rms"))
        trend, sizes = min(chains_of(view.layout).trends(every), key=lambda one: one[0].rise)
        least_fit = self.least_fit_of_few if trend.size < self.few else self.least_fit
        if -trend.rise < self.steep or trend.fit < least_fit or trend.size < self.least_matrices:
            self._inverted.end()
            return ()
        if self._inverted.hold(view.step) < self.patience:
            return ()
        large = np.isfinite(sizes) & (sizes > np.nanmin(sizes) + self.steep)
        return tuple(int(i) for i in matrices.ids[large])

    def _has_grown(self, view: FrameView, total: float) -> bool:
        if len(self._firsts) < self.first_steps or not math.isfinite(total):
            return False
        if total / self._first < self.growth or view.loss is None or view.loss.gain >= 0:
            self._grown.end()
            return False
        return self._grown.hold(view.step) >= self.patience

    def _describe_start(self, view: FrameView, layers: tuple[int, ...]) -> Judgement:
        layout = view.layout
        is_repeated = bool(self._repeated[matrices_of(layout).ids == layers[0]][0])
        evidence = Evidence(
            "gradient_norm", layout.path(layers[0]), float(view.all_layers("gradient_norm")[layers[0]]), None,
            f"at step {view.step}; with a loss of {self._largest_loss:.3g}, a change of the weight by 1 % changes the "
            "loss by more than its own size",
        )  # fmt: skip
        through = " through time" if is_repeated else ""
        summary = f"Gradients explode{through} from the first steps on: {name_layers(layout, layers)}."
        return Judgement(Severity.SEVERE, layers, self._sensitive.since, 0.85, summary, (evidence,))

    def _describe_depth(self, view: FrameView, layers: tuple[int, ...]) -> Judgement:
        sizes = view.all_layers("gradient_rms")
        largest, least = float(sizes[layers[0]]), float(np.nanmin(sizes[matrices_of(view.layout).ids]))
        how = "RMS of the gradient, against the smallest among the matrices at the same step"
        evidence = Evidence("gradient_rms", view.layout.path(layers[0]), largest, least, how)
        summary = (
            f"Gradients grow by a factor of 10^{math.log10(sizes[layers[0]] / least):.1f} on their way to the first "
            f"layers: {name_layers(view.layout, layers)}."
        )
        return Judgement(Severity.SEVERE, layers, self._inverted.since, 0.8, summary, (evidence,))

    def _describe_growth(self, view: FrameView, total: float) -> Judgement:
        how = f"norm of all gradients at step {view.step}"
        evidence = Evidence("gradient_norm_total", None, total, self._first, how)
        summary = (
            f"Gradients have grown {total / self._first:,.0f}-fold since the first steps, and the loss is above its "
            "start."
        )
        return Judgement(Severity.SEVERE, (), self._grown.since, 0.8, summary, (evidence,))

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        is_recurrent = any("weight_hh" in layer for layer in finding.layers[:2])
        unfit = INITIALISE_FOR_THE_ACTIVATION if is_recurrent else _TAME_THE_RECURRENCE
        return tuple(remedy for remedy in cls.remedies if remedy is not unfit)
