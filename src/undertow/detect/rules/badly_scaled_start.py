"""WGT003."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.module_structure import NONE, ModuleStructure, structure_of
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Verdict, Waiting
from undertow.schema.findings import Evidence
from undertow.schema.layers import LayerKind
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

Values = NDArray[np.float64]
_PLAIN_RECURRENCE = ("RNN", "RNNCell")  # gates bound the others


class BadlyScaledStart(Waiting):
    """Weights begin so small or so large that the signal dies out or blows up on its way through the network.

    What it sees
    ------------
    At the first measured step: the scale of each weight matrix (its RMS times the root of the number of inputs it sums:
    0.6 for PyTorch's default, 1 to 1.4 for Xavier and He), and what differs between samples in the output of each
    layer, from the first to the last. All matrices are at fault when their scales are unusual and the signal grows or
    falls by more than two decades, or when none of them has a scale above a hundredth, whatever normalises between them
    (scales somewhat below PyTorch's default count where nothing is learnt in sixty steps, either); one layer is when it
    alone is far from the others and the signal jumps there; with fewer than three, only if its scale is above 20. Where
    nothing normalises, a signal that grows by three decades counts even if the weights are usual, when the first loss
    is a hundred times that of a guess, or the first errors a hundred times the targets: sums over neighbours or time
    that are not divided do that. One module is named where most of it happens. A network that is sure of its answers
    before it has learnt anything counts as well: all of its weights where they are large, or else a table or a head (a
    tied one, too) whose weights have an RMS above two, when the first loss is ten times that of a guess. So does a
    plain recurrence, as a module or written out, whose weight begins large; or small (below 0.4, or 0.75 where it was
    not drawn as PyTorch does), when nothing is learnt in sixty steps: it forgets.

    Why it is bad
    -------------
    Signals and gradients shrink or grow by the same factor in every layer. Too small, nothing reaches the first
    layers and the loss does not move; too large, activations saturate or die and the loss overflows.

    When it is wrong
    ----------------
    A normalisation right behind a layer makes its scale irrelevant, so such layers do not count, nor do frozen layers,
    matrices that start at zero on purpose, or a last layer that starts small; embeddings and tied weights only where
    the answers suffer. Residual paths carry the signal past small layers.

    References
    ----------
    He et al., "Delving Deep into Rectifiers", 2015 (arXiv 1502.01852).
    Mishkin and Matas, "All you need is a good init", 2016 (arXiv 1511.06422).
    """

    code: ClassVar[str] = "WGT003"
    waits_for: ClassVar[frozenset[str]] = frozenset({"activation"})

    def __init__(self) -> None:
        self._start = InitialWeights()
        self._condition = Condition("start")
        self._judged = False
        self._fading: dict[int, float] = {}  # plain recurrences whose weight began small, with its scale
        self._in_doubt: Verdict | None = None  # what is to be said if nothing is learnt

    def grow(self, count: int) -> None:
        self._start.grow(count)

    @property
    def resting(self) -> bool:
        return not self._fading and self._in_doubt is None

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if self._judged:
            if self._fading or self._in_doubt is not None:
                return self._watch_progress(view)
            return () if view.row("activation_std") is None else self._condition.stay()
        if view.row("activation_std") is None or not self._start.take(view):
            return ()
        self._judged = True
        verdict = self._judge(view)
        if verdict is None:
            return ()
        self._fading, self._in_doubt = {}, None
        return self._condition.hold(True, lambda: verdict)

    def _judge(self, view: FrameView) -> Verdict | None:
        layout, structure = view.layout, structure_of(view.layout)
        scales = self._scales(layout, structure)
        modules = [
            i for i in structure.sequence if structure.matrix[i] != NONE and np.isfinite(scales[structure.matrix[i]])
        ]
        if not modules:
            return None
        plain, looped = _recurrences(layout), _looped(view, structure)
        alone = [] if structure.is_norm.any() else [i for i in looped if _is_alone(layout, i, looped)]
        # PyTorch draws evenly; a recurrence that somebody has set himself, and to less than one, is suspect sooner.
        is_own = view.all_layers("weight_kurtosis") > limit.EVEN_KURTOSIS
        small = np.where(is_own, limit.RECURRENT_SMALL_OF_OWN, limit.RECURRENT_SMALL)
        self._fading = {i: float(scales[i]) for i in (*plain, *alone) if scales[i] < small[i]}
        recurrent = [i for i in (*plain, *looped) if scales[i] > limit.RECURRENT_SCALE]
        if recurrent:
            return self._of_layers(view, scales, recurrent, "recurrent")
        path = scales[structure.matrix[modules]]
        signals = _signals(view)[modules]
        first, last = (structure.sequence.index(module) for module in (modules[0], modules[-1]))
        reset = bool(structure.is_norm[structure.sequence[first:last]].any())
        everywhere = self._everywhere(view, modules, path, signals, reset)
        if everywhere is not None:
            return everywhere
        odd = self._odd_ones(view, structure, modules, path, signals)
        return self._of_layers(view, scales, odd, "alone") if odd else self._sure_of_nothing(view)

    def _watch_progress(self, view: FrameView) -> tuple[Verdict, ...]:
        """A signal that fades, from layer to layer or from one step of time to the next: a fault where nothing is
        learnt."""
        if view.loss is None or 2 * view.loss.seen < limit.FAINT_LOSSES:
            return self._condition.stay()
        if has_learnt(view.loss) or view.loss.actors > 1:  # losses of adversaries need not fall
            self._fading, self._in_doubt = {}, None  # a start that let the loss fall once was no hindrance
            return self._condition.end()
        if view.loss.seen < limit.FAINT_LOSSES:
            return self._condition.stay()
        return self._condition.hold(True, lambda: self._in_doubt or self._fading_verdict(view))

    def _fading_verdict(self, view: FrameView) -> Verdict:
        layers = tuple(view.layout.in_order(self._fading))
        how = "RMS × √fan-in at the start: about what is left of a signal after one step of time"
        evidence = tuple(Evidence("weight_rms", view.layout.path(i), self._fading[i], 1.0, how) for i in layers[:3])
        verb = "begins" if len(layers) == 1 else "begin"
        summary = (
            f"The weight of {name_layers(view.layout, layers)} {verb} so small that what was read fades within a few "
            "steps of time, and the loss does not fall."
        )
        return Verdict("start", True, Severity.MODERATE, layers, 0, 0.7, summary, evidence)

    def _scales(self, layout: LayerIndex, structure: ModuleStructure) -> Values:
        """RMS × √fan-in of every matrix at the start; NaN for those that follow other rules."""
        scales = np.full(layout.count, np.nan)
        for i in structure.matrices:
            layer = layout.layers[int(i)]
            if layer.trainable and not layer.shared_with and self._start.norm[i] > 0:
                scales[i] = self._start.norm[i] / np.sqrt(layer.parameter_count) * np.sqrt(structure.fan_in[i])
        return scales

    def _everywhere(
        self, view: FrameView, modules: list[int], scales: Values, signals: Values, reset: bool
    ) -> Verdict | None:
        """`reset`: normalisations on the way bring the signal back to its scale, whatever the weights."""
        middle = float(np.exp(np.log(scales).mean()))
        known = np.flatnonzero(signals > 0)
        if len(scales) < 2 or len(known) < 2:
            return None
        # What the first layer received: its output over its own scale, or less, where it multiplies more than once.
        received = float(signals[known[0]] / scales[known[0]])
        if view.scalar("input_std") > 0:
            received = min(received, view.scalar("input_std"))
        decades = float(np.log10(signals[known[-1]] / received))
        small = middle < limit.SMALL_SCALE and np.mean(scales < limit.SMALL_SCALE) > 0.6
        large = middle > limit.LARGE_SCALE and np.mean(scales > limit.LARGE_SCALE) > 0.6
        layers: tuple[int, ...] = ()
        in_doubt = False
        sure = _is_sure(view)
        hopeless = _first_loss_over_guess(view) > limit.HOPELESS_START
        hopeless |= _errors_over_targets(view) > limit.HOPELESS_START
        if small and decades < -limit.FORWARD_DECADES and not reset:
            what, usual = "dies out: the weights of all layers begin too small", 0.58
        elif len(scales) >= limit.TINY_LEAST and scales.max() < limit.TINY_SCALE:
            what, usual = "is next to nothing behind every layer: the weights of all of them begin far too small", 0.58
        elif large and ((decades > limit.FORWARD_DECADES and not reset) or sure):
            what, usual = "blows up: the weights of all layers begin too large", 1.41
        elif decades > limit.FORWARD_DECADES_ALONE and not reset and hopeless and scales.max() > limit.JUMP_LARGE:
            layers = _unlike_others(modules, scales > limit.JUMP_LARGE)
            names = name_layers(view.layout, layers) if layers else "all layers"
            what, usual = f"blows up: the weights of {names} begin too large", 1.41
        elif decades > limit.FORWARD_DECADES_ALONE and not reset and hopeless:
            what = f"grows 10^{decades:.0f}-fold on its way through layers whose weights begin as usual"
            what, usual = f"{what}: something sums or multiplies, and nothing divides", 1.0
            steps = np.diff(np.log10([received, *signals[known]]))
            if steps.max() > limit.FORWARD_AT_ONCE * steps[steps > 0].sum():
                layers = (modules[int(known[steps.argmax()])],)
                what = f"{what}, most of it in {view.layout.path(layers[0])}"
        elif decades < -limit.FORWARD_DECADES and not reset and np.mean(scales < limit.FAINT_SCALE) > 0.6:
            what, usual = "dies out: the weights of all layers begin too small, and the loss does not fall", 0.58
            in_doubt = True
        else:
            return None
        if not layers and (small or large):
            layers = _unlike_others(modules, scales < limit.SMALL_SCALE if small else scales > limit.LARGE_SCALE)
            what = what.replace("all layers", name_layers(view.layout, layers)) if layers else what
        evidence = (
            Evidence("weight_rms", None, middle, usual,
                     "RMS × √fan-in at the start, geometric mean over the weight matrices"),
            Evidence("activation_std", None, decades, 0.0,
                     "decades by which what differs between samples changes from the input to the last layer"),
        )  # fmt: skip
        summary = f"The signal {what}."
        if in_doubt:
            self._in_doubt = Verdict("start", True, Severity.MODERATE, layers, view.step, 0.8, summary, evidence)
            return None
        return Verdict("start", True, Severity.SEVERE, layers, view.step, 0.93, summary, evidence)

    def _odd_ones(
        self, view: FrameView, structure: ModuleStructure, modules: list[int], scales: Values, signals: Values
    ) -> list[int]:
        """Modules whose own scale stands out and at which the signal jumps."""
        logarithms = np.log10(scales)
        alone = len(modules) < 3  # too few to compare with
        away = logarithms if alone else logarithms - np.median(logarithms)
        large = limit.JUMP_LARGE_ALONE if alone else limit.JUMP_LARGE
        attending = _attention_parts(view)
        odd: list[int] = []
        for place in np.flatnonzero(np.abs(away) > limit.JUMP_DECADES).tolist():
            module = modules[place]
            layer = view.layout.layers[module]
            if structure.is_normalised(module) or layer.group in attending or layer.path in attending:
                continue
            before = float(signals[place - 1]) if place else np.nan
            after, scale, last = float(signals[place]), float(scales[place]), float(signals[-1])
            jump = float(np.log10(after / before)) if before > 0 and after > 0 else float(away[place])
            too_large = scale > large and jump > limit.JUMP_DECADES - 0.3
            # Only where nothing carries the signal past it: what comes out at the end is small, too.
            too_small = scale < limit.JUMP_SMALL and jump < -limit.JUMP_DECADES and not last > 0.1 * before
            if too_large or (too_small and not alone and place < len(modules) - 1):
                odd.append(module)
        return odd

    def _sure_of_nothing(self, view: FrameView) -> Verdict | None:
        """One table or head so large that its answers are certain, and wrong, before anything is learnt."""
        over = _first_loss_over_guess(view)
        if not (over > limit.SURE_START and _is_sure(view)):
            return None
        layout = view.layout
        sizes = {
            layer.id: float(self._start.norm[layer.id]) / math.sqrt(layer.parameter_count)
            for layer in layout.layers.parameters
            if layer.trainable and len(layer.shape) == 2 and self._start.norm[layer.id] > 0
        }
        loudest = max(sizes, key=lambda i: sizes[i], default=NONE)
        if loudest == NONE or sizes[loudest] < limit.LOUD_TABLE:
            return None
        path = layout.path(loudest)
        evidence = (
            Evidence("weight_rms", path, sizes[loudest], 1.0, "RMS at the start, beside that of a usual table"),
            Evidence("loss", None, view.loss.first if view.loss else None, chance_level(view),
                     "the first loss, beside that of a guess"),
        )  # fmt: skip
        summary = (
            f"The weight of {path} begins far too large: the model is certain of its answers before it has learnt "
            f"anything, and its first loss is {over:,.0f} times that of a guess."
        )
        return Verdict("start", True, Severity.SEVERE, (loudest,), view.step, 0.9, summary, evidence)

    def _of_layers(self, view: FrameView, scales: Values, layers: list[int], how: str) -> Verdict:
        layout, structure = view.layout, structure_of(view.layout)
        weights = [i if how == "recurrent" else int(structure.matrix[i]) for i in layers]
        evidence = tuple(
            Evidence("weight_rms", layout.path(i), float(scales[i]), 1.0, "RMS × √fan-in at the start")
            for i in weights[:3]
        )
        size = "large" if scales[weights[0]] > 1 else "small"
        verb = "begins" if len(layers) == 1 else "begin"
        reason = (
            "every time step multiplies the signal"
            if how == "recurrent"
            else f"the signal {'blows up' if size == 'large' else 'dies out'} there, and the other layers are as usual"
        )
        summary = f"The weight of {name_layers(layout, layers)} {verb} far too {size}: {reason}."
        return Verdict("start", True, Severity.SEVERE, tuple(layers), view.step, 0.9, summary, evidence)


def _unlike_others(modules: list[int], unusual: NDArray[np.bool_]) -> tuple[int, ...]:
    """Those with unusual weights, where more than one of the others has usual ones: a head often has."""
    if np.count_nonzero(~unusual) < 2:
        return ()
    return tuple(module for module, is_unusual in zip(modules, unusual.tolist(), strict=True) if is_unusual)


def _recurrences(layout: LayerIndex) -> list[int]:
    return [
        layer.id
        for layer in layout.layers.parameters
        if layer.kind is LayerKind.RECURRENT and layer.module_type in _PLAIN_RECURRENCE
    ]


def _looped(view: FrameView, structure: ModuleStructure) -> list[int]:
    """Square matrices of modules that run again and again in a step: recurrences that are written out."""
    shapes = [view.layout.layers[int(i)].shape for i in structure.matrices]
    square = np.array([len(shape) == 2 and shape[0] == shape[1] for shape in shapes], bool)
    calls = view.calls(structure.matrices.astype(np.int32))
    return [] if calls is None else structure.matrices[square & (calls >= limit.EXPLODING_CALLS)].tolist()


def _is_alone(layout: LayerIndex, weight: int, looped: list[int]) -> bool:
    """Is it the only one in its cell? Several are gates, which may hold what the cell has read."""
    cell = layout.layers[weight].group.rpartition(".")[0]
    return sum(layout.layers[i].group.rpartition(".")[0] == cell for i in looped) == 1


def _is_sure(view: FrameView) -> bool:
    return view.scalar("output_max_probability") > limit.SURE_AT_START and view.scalar("output_accuracy") <= 0.5


def _first_loss_over_guess(view: FrameView) -> float:
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


def _attention_parts(view: FrameView) -> set[str]:
    """Paths of modules that attend: the size of their logits is a question of its own. Where that is told of one of
    their matrices, what is around it attends.
    """
    logits = view.all_layers("attention_logit_max")
    attending = [view.layout.layers[i] for i in np.flatnonzero(~np.isnan(logits)).tolist()]
    return {one.path for one in attending} | {one.group for one in attending if one.module_type == "Linear"}
