"""WGT005."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.between_steps import BetweenSteps
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.wording import known, name_layers
from undertow.detect.rule import Pace, Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.layers import LayerKind
from undertow.schema.severity import Severity

Row = NDArray[np.float32]  # of one frame, or of many


def tables_of(layout: LayerIndex) -> NDArray[np.int64]:
    """Embeddings that are trained."""
    tables = [layer for layer in layout.layers.parameters if layer.kind is LayerKind.EMBEDDING and layer.trainable]
    return np.array([table.id for table in tables], np.int64)


class ShrinkingWeights:
    """Weights shrink towards zero, step after step, whatever the gradient says.

    What it sees
    ------------
    How much of each update points straight at zero: the loss of norm over the length of the update, for all weight
    matrices. What learns turns a weight and changes its length little; what decays shortens it and does not turn it.
    Reported when most matrices lose at least 0.3 % of their length at each of three measured steps in a row and most
    of every update is that loss (half of it where they lose 1 %), or when a single matrix has lost more than two
    thirds in this way, or the scale of a normalisation has, and its weight decay explains it. However it came about,
    a matrix of which less than a hundredth of its length at the start is left, at two measured steps, is reported,
    too: one that is clamped, or multiplied by something small between the steps.

    Why it is bad
    -------------
    The model forgets faster than it learns. The usual cause is a weight decay that is far too strong for the
    learning rate: with AdamW each step takes away learning rate × weight decay of the weight.

    When it is wrong
    ----------------
    Weight decay of usual strength takes 1e-6 to 1e-3 of a weight away at a step. Weights in front of a normalisation
    may shrink without harm until they find their balance; that takes hundreds of steps.

    References
    ----------
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019 (arXiv 1711.05101).
    """

    code: ClassVar[str] = "WGT005"
    pace: ClassVar[Pace] = ("weight", 5)

    def __init__(self) -> None:
        self._start = InitialWeights()
        self._shrinks = LayerStreak()
        self._building = False
        self._taken: NDArray[np.float64] = np.zeros(0)  # of each weight at a step, as the settings of its optimizer say
        self._condition, self._gone = Condition("shrinking"), Condition("gone")
        self._nothing_left = LayerStreak()
        self._between = BetweenSteps()

    def grow(self, count: int) -> None:
        self._start.grow(count)
        self._shrinks.grow(count)
        self._nothing_left.grow(count)
        self._between.grow(count)
        self._taken = grown(self._taken, count, 0.0)

    @property
    def resting(self) -> bool:
        waiting = self._building or self._condition.is_open or self._gone.is_open
        return not (waiting or self._nothing_left.length.any())

    def news(self, batch: FrameBatch) -> Flags:
        """Frames in which any weight may shrink or be gone, and all frames where that is not known of all of them."""
        if not batch.has("weight"):
            return batch.none()
        everywhere = list(range(len(batch)))
        ids, same = batch.ids("weight"), batch.frames_with("update") == everywhere
        if not (same and batch.frames_with("weight") == everywhere and self._start.knows(ids)):
            return np.ones(len(batch), bool)
        norms, lengths, ratios = (batch.row(name) for name in ("weight_norm", "update_norm", "update_ratio"))
        if norms.shape != lengths.shape:
            return np.ones(len(batch), bool)
        shrinks = self._shrinking(norms, lengths, ratios) & ~self._has_grown(norms, batch.ids("update"))
        suspect = shrinks | (norms < limit.GONE_TO * self._start.norm[ids])
        return batch.skipped | suspect.any(axis=1) | self._between.news(batch, limit.WRITTEN)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        if batch.has("weight"):
            self._between.pass_over(batch, first, last)
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.skipped or not self._start.take(view):
            return ()
        return (*self._judge_shrinking(view), *self._judge_gone(view))

    def _judge_gone(self, view: FrameView) -> tuple[Verdict, ...]:
        """Matrices of which next to nothing is left, however they lost it."""
        norms, ids = view.row("weight_norm"), view.ids("weight")
        assert norms is not None
        assert ids is not None
        gone = norms < limit.GONE_TO * self._start.norm[ids]
        if not gone.any() and not self._nothing_left.length.any():
            return ()
        self._nothing_left.end(ids[~gone & ~np.isnan(norms)])
        self._nothing_left.hold(ids[gone], view.step)
        matrices = structure_of(view.layout).matrices
        members = matrices[self._nothing_left.length[matrices] >= limit.GONE_FRAMES]
        if not len(members):
            return self._gone.end()
        ordered = tuple(view.layout.in_order(members))
        return self._gone.hold(ordered, lambda: self._gone_verdict(view, ordered))

    def _gone_verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        layout, norms = view.layout, view.all_layers("weight_norm")
        how = "norm now, against the norm at the start"
        evidence = tuple(
            Evidence("weight_norm", layout.path(i), known(norms[i]), known(self._start.norm[i]), how)
            for i in members[:3]
        )
        verb = "has" if len(members) == 1 else "have"
        summary = f"{name_layers(layout, members)} {verb} been pressed to nothing: less than 1 % of the start is left."
        first_step = int(self._nothing_left.since[list(members)].min())
        return Verdict("gone", True, Severity.SEVERE, members, first_step, 0.95, summary, evidence)

    def _judge_shrinking(self, view: FrameView) -> tuple[Verdict, ...]:
        before, written = self._between.norms(view), self._between.observe(view)
        lengths, ratios, ids = view.row("update_norm"), view.row("update_ratio"), view.ids("update")
        norms = view.row("weight_norm")
        if lengths is None or ratios is None or ids is None or norms is None or len(norms) != len(lengths):
            return ()
        shrinks = self._shrinking(norms, lengths, ratios)
        if written is not None and (written > limit.WRITTEN).any():
            # Multiplied by something small between the steps: less is left than after the step before.
            shrinks |= (written > limit.SHRINKS_FAST_BY) & (norms < (1 - limit.SHRINKS_FAST_BY) * before)
        shrinks &= ~self._has_grown(norms, ids)
        if not self._building and not shrinks.any():
            return ()
        spread = view.row("weight_row_spread")
        if spread is not None:  # rows that are all equal can only grow or shrink: see WGT002
            shrinks &= ~(spread < limit.EQUAL_ROWS)
        measured = ~np.isnan(lengths)
        self._shrinks.end(ids[measured & ~shrinks])
        self._shrinks.hold(ids[shrinks], view.step)
        self._building = bool(self._shrinks.length.any())
        self._look_at_settings(view)
        members = self._members(view, ids, norms)
        if not len(members):
            return self._condition.end()
        ordered = tuple(view.layout.in_order(members))
        return self._condition.hold(ordered, lambda: self._verdict(view, ordered))

    @staticmethod
    def _shrinking(norms: Row, lengths: Row, ratios: Row) -> Flags:
        """Weights that lose length by more than chance, in the direction of zero."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            lost = 1 - norms * ratios / lengths  # share of the norm before the step, which is length / ratio
            shrinks = (lost > limit.SHRINKS_BY) & (lost > limit.RADIAL_SHARE * ratios)
            return shrinks | ((lost > limit.SHRINKS_FAST_BY) & (lost > limit.RADIAL_SHARE_FAST * ratios))

    def _has_grown(self, norms: Row, ids: NDArray[np.int32]) -> Flags:
        """What has grown too far may come back."""
        return norms > limit.GROWN_BEFORE * self._start.norm[ids]

    def _members(self, view: FrameView, ids: NDArray[np.int32], norms: NDArray[np.float32]) -> NDArray[np.int64]:
        """Most matrices together, or single ones (and scales of normalisations) that have lost much more."""
        matrices = structure_of(view.layout).matrices
        matrices = matrices[view.layout.is_trainable[matrices]]
        lasts = self._shrinks.length >= limit.SHRINK_FRAMES
        now = np.full(view.layout.count, np.nan)
        now[ids] = norms
        if len(matrices) and np.mean(lasts[matrices]) >= limit.SHRINKING_TOGETHER:
            together = matrices[lasts[matrices]]
            kept = float(np.median(now[together] / self._start.norm[together]))
            # What nobody has set concerns all weights: a head alone shrinks where its first answers are too large.
            everything = np.concatenate([matrices, tables_of(view.layout)])
            most = np.mean(lasts[everything]) >= limit.SHRINKING_TOGETHER
            if self._is_set(together) or (most and not self._learns_more(view, kept)):
                return together
        lasting = np.flatnonzero(lasts & ~view.layout.is_bias)
        lasting = lasting[now[lasting] < limit.SHRUNK_ALONE_TO * self._start.norm[lasting]]
        # A scale of a normalisation may be learnt to be small within a few long steps: a decay must explain it.
        scales = np.setdiff1d(lasting, np.concatenate([matrices, tables_of(view.layout)]))
        return lasting if not len(scales) or self._is_set(scales) else np.setdiff1d(lasting, scales)

    def _look_at_settings(self, view: FrameView) -> None:
        if view.row("optimizer_weight_decay") is not None:
            taken = view.all_layers("optimizer_weight_decay") * view.all_layers("optimizer_rate")
            self._taken = np.where(np.isnan(taken), self._taken, taken)

    def _is_set(self, members: NDArray[np.int64]) -> bool:
        """The optimizer takes this much away by itself."""
        return bool(np.median(self._taken[members]) > 0.5 * limit.SHRINKS_BY)

    @staticmethod
    def _learns_more(view: FrameView, kept: float) -> bool:
        """The loss has fallen by far more than a penalty on these weights could: first answers were too large."""
        return view.loss is not None and view.loss.remaining < limit.SHRINKING_LEARNS * kept**2

    def _verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        layout = view.layout
        norms = view.all_layers("weight_norm")
        how = "norm now, against the norm at the start"
        evidence = [
            Evidence("weight_norm", layout.path(i), known(norms[i]), known(self._start.norm[i]), how)
            for i in members[:3]
        ]
        decay = view.row("optimizer_weight_decay")
        if decay is not None and not np.isnan(decay).all():
            evidence.append(Evidence("optimizer_weight_decay", None, float(np.nanmax(decay)), None, "as it is set"))
        matrices = {int(i) for i in structure_of(layout).matrices if layout.is_trainable[i]}
        together = len(matrices & set(members)) >= max(limit.SHRINKING_TOGETHER * len(matrices), 1)
        which = "The weight matrices" if together else name_layers(layout, members)
        verb = "shrink" if together or len(members) > 1 else "shrinks"
        summary = f"{which} {verb} towards zero at every step, whatever the gradient says."
        first_step = int(self._shrinks.since[list(members)].min())
        layers = () if together else members  # one setting for all is no layer's fault
        return Verdict("shrinking", True, Severity.SEVERE, layers, first_step, 0.93, summary, (*evidence,))
