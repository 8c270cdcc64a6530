"""The scale of the weights before the first step, and how the signal fares on its way through them."""

import math

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, Limit, Shared, Stage, Tracker, having
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.module_structure import NONE, ModuleStructure, structure_of
from undertow.detect.features.progress import has_learnt
from undertow.schema import Evidence, Finding, LossKind

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


class InitialScales(Tracker):
    """Measured once, at the first step that has weights and activations; `is_first` is true at that frame alone.

    The scale of a weight is its RMS × √fan-in: 0.58 for PyTorch's default, about 1 for Xavier, 1.41 for He.
    """

    wakes_on = having("activation")
    order = ("recurrence-out-of-scale", "weights-out-of-scale", "unnormalised-sums", "layer-out-of-scale")

    def __init__(self) -> None:
        self._weights = InitialWeights()
        self._is_measured = False
        self.is_first = self.is_informed = False

    def follow(self, view: FrameView) -> None:
        self.is_first, self.is_informed = False, view.row("activation_std") is not None
        if not self._is_measured and self.is_informed and self._weights.take(view):
            self._is_measured = True
            self._measure(view)

    @property
    def norm(self) -> Values:
        """Of every parameter at the start."""
        return self._weights.norm

    def _measure(self, view: FrameView) -> None:
        layout, structure = view.layout, structure_of(view.layout)
        self.scales = self._scales(layout, structure)
        matrix = structure.matrix
        self.modules = [i for i in structure.sequence if matrix[i] != NONE and np.isfinite(self.scales[matrix[i]])]
        if not self.modules:
            return
        self.is_first = True
        self.path = self.scales[matrix[self.modules]]  # scales in the order in which the signal meets them
        self.signals = _signals(view)[self.modules]
        first, last = (structure.sequence.index(module) for module in (self.modules[0], self.modules[-1]))
        # Normalisations on the way bring the signal back to its scale, whatever the weights.
        self.is_normalised = bool(structure.is_norm[structure.sequence[first:last]].any())
        self.known = np.flatnonzero(self.signals > 0)
        self.is_path = len(self.path) >= 2 and len(self.known) >= 2
        self.received = self.decades = math.nan
        if self.is_path:
            # What the first layer received: its output over its own scale, or less, where it multiplies more than once.
            self.received = float(self.signals[self.known[0]] / self.path[self.known[0]])
            if view.scalar("input_std") > 0:
                self.received = min(self.received, view.scalar("input_std"))
            self.decades = float(np.log10(self.signals[self.known[-1]] / self.received))

    def _scales(self, layout: LayerIndex, structure: ModuleStructure) -> Values:
        """NaN for matrices that follow other rules: frozen or tied ones, and those that start at zero."""
        scales = np.full(layout.count, np.nan)
        for i in structure.matrices:
            layer = layout.layers[int(i)]
            if layer.trainable and not layer.shared_with and self.norm[i] > 0:
                scales[i] = self.norm[i] / np.sqrt(layer.parameter_count) * np.sqrt(structure.fan_in[i])
        return scales

    def evidence(self, usual: float) -> tuple[Evidence, ...]:
        middle = float(np.exp(np.log(self.path).mean()))
        return (
            Evidence("weight_rms", None, middle, usual,
                     "RMS × √fan-in at the start, geometric mean over the weight matrices"),
            Evidence("activation_std", None, self.decades, 0.0,
                     "decades by which what differs between samples changes from the input to the last layer"),
        )  # fmt: skip


class BadStart(Condition):
    """What every condition about the start shares: one of them speaks, at the first measured step or, where the start
    is only doubtful, once nothing has been learned for a while.
    """

    code, stage, is_standing = "WGT003", Stage.INITIALISATION, True
    _start = Shared(InitialScales)

    hopeless = Limit(100, "times the loss of a guess, or errors in sizes of the targets, at the first step")
    sure = Limit(0.6, "mean of the largest probability at the first step, while at most half of the answers are right")
    patience = Limit.learning(60, "losses: a doubtful start is told only where nothing is learned in them")
    most = Limit(0.6, "of the weight matrices, to speak of all of them: a head often differs")
    least_decades = Limit(2, "decades by which the signal grows or falls through the whole network")
    least_decades_of_usual = Limit(3, "decades of growth, where most weights have a usual scale")
    large_for_one = Limit(5, "RMS × √fan-in: no usual recipe gives a single layer more")

    def __init__(self) -> None:
        self._doubt: Judgement | None = None  # what is to be said if nothing is learned

    @property
    def is_calm(self) -> bool:
        return self._doubt is None and super().is_calm

    def judge_start(self, view: FrameView) -> Judgement | None:
        """At the first measured step, unless another condition has spoken."""
        return None

    def doubt(self, view: FrameView) -> Judgement | None:
        """At the first measured step: what only counts if nothing is learned."""
        return None

    def observe(self, view: FrameView) -> Judgement | None:
        if self._doubt is not None:
            return self._watch_progress(view)
        if self._start.is_first and not self._start.open_variants:
            judgement = self.judge_start(view)
            if judgement is not None:
                return self.hold(True, lambda: judgement)
            self._doubt = self.doubt(view)
            return None
        return self.stay() if self._start.is_informed else None

    def _watch_progress(self, view: FrameView) -> Judgement | None:
        if self._start.open_variants - {self.variant}:
            self._doubt = None
            return self.end()
        if view.loss is None or 2 * view.loss.seen < self.patience:
            return self.stay()
        if has_learnt(view.loss) or view.loss.actors > 1:  # losses of adversaries need not fall
            self._doubt = None  # a start that let the loss fall once was no hindrance
            return self.end()
        if view.loss.seen < self.patience:
            return self.stay()
        judgement = self._doubt
        assert judgement is not None
        return self.hold(True, lambda: judgement)

    @classmethod
    def makes_smaller(cls, finding: Finding) -> bool:
        sizes = [one for one in finding.evidence if one.quantity == "weight_rms"]
        return bool(sizes) and (sizes[0].value or 0.0) < (sizes[0].expected or 0.0)

    def is_sure(self, view: FrameView) -> bool:
        """Certain of its answers before anything is learned."""
        return view.scalar("output_max_probability") > self.sure and view.scalar("output_accuracy") <= 0.5

    def is_hopeless(self, view: FrameView) -> bool:
        return first_loss_over_guess(view) > self.hopeless or _errors_over_targets(view) > self.hopeless


def first_loss_over_guess(view: FrameView) -> float:
    return math.nan if view.loss is None else view.loss.first / chance_level(view)


def _errors_over_targets(view: FrameView) -> float:
    """The first errors of a regression in sizes of its targets; 0 where those are not known."""
    size = math.hypot(view.scalar("target_mean"), view.scalar("target_std"))
    if view.scalar("loss_kind") != LossKind.MEAN_SQUARE or view.loss is None or not (size > 0 and view.loss.first > 0):
        return 0.0
    return math.sqrt(view.loss.first) / size


def _signals(view: FrameView) -> Values:
    """The deviation of what differs between samples, of every module's output."""
    deviation = view.all_layers("activation_std").astype(np.float64)
    between = view.all_layers("activation_sample_spread")
    return deviation * np.sqrt(np.where(np.isnan(between), 1.0, np.maximum(between, 0.0)))
