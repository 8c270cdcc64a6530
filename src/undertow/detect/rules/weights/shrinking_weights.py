"""WGT005: weights shrink towards zero at every step, or next to nothing is left of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, LayerStreak, LayerValues, Limit, Stage
from undertow.detect.features.between_steps import WRITTEN, BetweenSteps
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.output_layer import output_layers
from undertow.detect.features.remedies import LET_ONLY_THE_OPTIMIZER_WRITE, LOWER_THE_WEIGHT_DECAY
from undertow.detect.features.wording import known, name_layers
from undertow.schema import Evidence, Finding, LayerKind, Remedy, Severity

Row = NDArray[np.float32]


class ShrinkingWeights(Condition):
    """Weights shrink towards zero, step after step, whatever the gradient says.

    What it sees: How much of each update points straight at zero: what learns turns a weight and changes its length
        little, what decays shortens it and does not turn it. Reported when most matrices lose at least 0.3 % of their
        length at each of three measured steps and most of every update is that loss (half of it where they lose 1 %),
        or when a single matrix, or a scale of a normalisation whose weight decay explains it, has lost more than two
        thirds in this way. Or when less than a hundredth of a matrix is left, however it came about: it may be clamped,
        or multiplied by something small between the steps.
    Why it is bad: The model forgets faster than it learns. The usual cause is a weight decay that is far too strong for
        the learning rate: with AdamW each step takes away learning rate × weight decay of the weight.
    When it is wrong: Weight decay of usual strength takes 1e-6 to 1e-3 of a weight away at a step. Weights in front of
        a normalisation may shrink without harm until they find their balance; that takes hundreds of steps. Pruning a
        whole matrix on purpose looks like a matrix that is driven to zero.
    References: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019 (arXiv 1711.05101).
    """

    code, variant, formerly = "WGT005", "shrinking-weights", "shrinking gone vanished-weights"
    places = ("total",)
    stage = Stage.OPTIMIZER
    meaning = "The layer loses what it has learned faster than it can learn"
    remedies = (LOWER_THE_WEIGHT_DECAY, LET_ONLY_THE_OPTIMIZER_WRITE)
    needs = frozenset({"weight"})
    pace = ("weight", 5)

    shrinks_by = Limit(3e-3, "of a weight's norm at a step; weight decay of usual strength takes 1e-6 to 1e-3")
    radial = Limit(0.7, "of the update only shortens the weight; healthy updates turn it")
    shrinks_fast_by = Limit(0.01, "of a weight's norm at a step: a smaller radial share is then enough")
    radial_if_fast = Limit(0.5, "of the update, as where a penalty in the loss turns weights, too")
    frames = Limit.chance(3, "measured steps in a row, five steps apart or more: chance does not repeat so often")
    together = Limit(0.6, "of the matrices; in no healthy training do so many shrink at a single measured step")
    alone_to = Limit(0.3, "of the start, for one matrix whose siblings do not shrink")
    learns = Limit(
        1.5, "times the square of what is left of the weights: what is left of a loss that is all their size"
    )
    all_learnt = Limit(0.01, "of the first loss: nothing is left to be learnt")
    fallen = Limit(0.9, "of the first losses: less is no fall")
    grown_before = Limit(1.1, "times the start: large targets are overshot, and the weights come back")
    equal_rows = Limit(1e-4, "spread of the rows over the norm: rows that are all equal can only grow or shrink")

    gone_below = Limit(0.01, "of the norm at the start: no healthy matrix has lost so much")
    gone_frames = Limit.chance(2, "measured steps in a row: once may be a moment between two writes")

    _taken = LayerValues(np.float64, 0.0)  # of each weight at a step, as the settings of its optimizer say

    def __init__(self) -> None:
        self._start = InitialWeights()
        self._between = BetweenSteps()
        self._shrinks, self._gone = LayerStreak(), LayerStreak()
        self._builds_up = False

    def observe(self, view: FrameView) -> Judgement | None:
        if view.skipped or not self._start.take(view):
            return None
        before, written = self._between.norms(view), self._between.observe(view)
        lengths, ratios, ids = view.row("update_norm"), view.row("update_ratio"), view.ids("update")
        norms = view.row("weight_norm")
        if lengths is None or ratios is None or ids is None or norms is None or len(norms) != len(lengths):
            return None
        shrinks = self._loses_length(norms, lengths, ratios)
        if written is not None and (written > WRITTEN).any():
            # Multiplied by something small between the steps: less is left than after the step before.
            shrinks |= (written > self.shrinks_fast_by) & (norms < (1 - self.shrinks_fast_by) * before)
        gone = norms < self.gone_below * self._start.norm[ids]
        if not self._builds_up and not shrinks.any() and not gone.any():
            return None
        self._gone.end(ids[~gone & ~np.isnan(norms)])
        self._gone.hold(ids[gone], view.step)
        shrinks &= ~(norms > self.grown_before * self._start.norm[ids])
        spread = view.row("weight_row_spread")
        if spread is not None:
            shrinks &= ~(spread < self.equal_rows)
        self._shrinks.end(ids[~np.isnan(lengths) & ~shrinks])
        self._shrinks.hold(ids[shrinks], view.step)
        self._builds_up = bool(self._shrinks.length.any() or gone.any())
        if view.row("optimizer_weight_decay") is not None:
            taken = view.all_layers("optimizer_weight_decay") * view.all_layers("optimizer_rate")
            self._taken = np.where(np.isnan(taken), self._taken, taken)
        matrices = structure_of(view.layout).matrices
        gone = matrices[self._gone.length[matrices] >= self.gone_frames]
        if len(gone) and (
            self._is_set(gone)
            or not self._learns_more(view, _left(view.all_layers("weight_norm"), self._start.norm, gone))
        ):
            return self.hold_of(view, gone, self._describe_gone)
        return self.hold_of(view, self._affected(view), self._describe)

    def _loses_length(self, norms: Row, lengths: Row, ratios: Row) -> NDArray[np.bool_]:
        """By more than chance, in the direction of zero."""
        lost = 1 - norms * ratios / lengths  # share of the norm before the step, which is length / ratio
        if not (lost > self.shrinks_by).any():
            return np.zeros(len(lost), bool)
        shrinks = (lost > self.shrinks_by) & (lost > self.radial * ratios)
        return shrinks | ((lost > self.shrinks_fast_by) & (lost > self.radial_if_fast * ratios))

    def _affected(self, view: FrameView) -> NDArray[np.int64]:
        """Most matrices together, or single ones (and scales of normalisations) that have lost much more."""
        layout, start = view.layout, self._start.norm
        matrices, now = _trained_matrices(layout), view.all_layers("weight_norm").astype(np.float64)
        with_tables = np.concatenate([matrices, _trained_tables(layout)])
        lasts = self._shrinks.length >= self.frames
        if len(matrices) and np.mean(lasts[matrices]) >= self.together:
            shrinking = matrices[lasts[matrices]]
            # What nobody has set concerns all weights: a head alone shrinks where its first answers are too large, and
            # the only matrix of a model where its gradient says so.
            most = len(with_tables) > 1 and np.mean(lasts[with_tables]) >= self.together
            if self._is_set(shrinking) or (most and not self._learns_more(view, _left(now, start, shrinking))):
                return shrinking
        lasting = np.flatnonzero(lasts & ~layout.is_bias)
        lasting = lasting[now[lasting] < self.alone_to * start[lasting]]
        if len(lasting) and not self._is_set(lasting) and self._learns_more(view, _left(now, start, lasting)):
            return lasting[:0]
        # A head shrinks by its gradient where its inputs tell nothing: then a decay must explain it, too.
        if len(lasting) and not self._is_set(lasting):
            heads = [structure_of(layout).matrix[i] for i in output_layers(view)]
            lasting = np.setdiff1d(lasting, heads)
        # A scale of a normalisation may be learned to be small within a few long steps: a decay must explain it.
        scales = np.setdiff1d(lasting, with_tables)
        return lasting if not len(scales) or self._is_set(scales) else np.setdiff1d(lasting, scales)

    def _is_set(self, members: NDArray[np.int64]) -> bool:
        """The optimizer takes this much away by itself."""
        return bool(np.median(self._taken[members]) > 0.5 * self.shrinks_by)

    def _learns_more(self, view: FrameView, left: float) -> bool:
        """The loss has fallen as the weights have, or more: it asks for that, or first answers were too large. Of a
        penalty on them that is too strong, the error is left."""
        loss = view.loss
        if loss is None or not loss.positive:
            return False
        left_of_it = max(self.learns * left**2, self.all_learnt)
        return loss.low < min(left_of_it, self.fallen) * loss.first  # a median lags behind a loss that falls as fast

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        evidence = self._evidence(view, members)
        decay = view.row("optimizer_weight_decay")
        if decay is not None and not np.isnan(decay).all():
            evidence += (Evidence("optimizer_weight_decay", None, float(np.nanmax(decay)), None, "as it is set"),)
        matrices = _trained_matrices(view.layout)
        all_shrink = len(np.intersect1d(matrices, members)) >= max(self.together * len(matrices), 1)
        which = "The weight matrices" if all_shrink else name_layers(view.layout, members)
        verb = "shrink" if all_shrink or len(members) > 1 else "shrinks"
        summary = f"{which} {verb} towards zero at every step, whatever the gradients are."
        first_step = int(self._shrinks.since[list(members)].min())
        layers = () if all_shrink else members  # one setting for all is no layer's fault
        return Judgement(Severity.SEVERE, layers, first_step, 0.93, summary, evidence)

    def _describe_gone(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        named, verb = name_layers(view.layout, members), "has" if len(members) == 1 else "have"
        summary = f"{named} {verb} shrunk to nothing: less than 1% of the initial norm is left."
        first_step = int(self._gone.since[list(members)].min())
        return Judgement(Severity.SEVERE, members, first_step, 0.95, summary, self._evidence(view, members))

    def _evidence(self, view: FrameView, members: tuple[int, ...]) -> tuple[Evidence, ...]:
        layout, norms, start = view.layout, view.all_layers("weight_norm"), self._start.norm
        how = "norm now, against the norm at the start"
        return tuple(
            Evidence("weight_norm", layout.path(i), known(norms[i]), known(start[i]), how) for i in members[:3]
        )

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        norms = [(one.value, one.expected) for one in finding.evidence if one.quantity == "weight_norm"]
        is_gone = any(now is not None and start and now < cls.gone_below * start for now, start in norms)
        return cls.remedies[::-1] if is_gone else cls.remedies[:1]


def _left(now: NDArray[np.floating], start: NDArray[np.float64], members: NDArray[np.int64]) -> float:
    return float(np.median(now[members] / start[members]))


def _trained_matrices(layout: LayerIndex) -> NDArray[np.int64]:
    matrices = structure_of(layout).matrices
    return matrices[layout.is_trainable[matrices]]


def _trained_tables(layout: LayerIndex) -> NDArray[np.int64]:
    tables = [layer for layer in layout.layers.parameters if layer.kind is LayerKind.EMBEDDING and layer.trainable]
    return np.array([table.id for table in tables], np.int64)
