"""WGT001."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.cadence import Cadence
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.matrices import matrices_of
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.wording import known, name_layers
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

_OF_THE_LOSS = frozenset({"loss_kind"})


class GrowingWeights:
    """Weights grow without bound.

    What it sees
    ------------
    The norm of each weight matrix at measured steps ever further apart. A matrix is reported when its norm has grown
    tenfold since the start and was larger at each of six such looks than at the one before. It is an alarm while the
    loss is no lower than at the start, and a remark otherwise. An alarm, too, whatever the loss: all matrices grow at
    the same rate and straight outward, as if something rewarded their size; a loss below zero where its error cannot be
    makes that certain early.

    Why it is bad
    -------------
    Large weights make large outputs: logits and activations overflow, softmax and tanh saturate, and every update
    becomes small beside them. The causes are a learning rate that is too high, training for long without weight
    decay, or a penalty on large weights with the wrong sign.

    When it is wrong
    ----------------
    Healthy weights grow to two or three times their start over a few hundred steps, a last layer that must reach large
    targets to twenty times. Matrices that start at zero or tiny on purpose, and embeddings, are not judged.

    References
    ----------
    Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023 (arXiv 2309.14322).
    """

    code: ClassVar[str] = "WGT001"

    def __init__(self) -> None:
        self._start = InitialWeights()
        self._cadence = Cadence()
        self._last: NDArray[np.float64] = np.zeros(0)
        self._rises: NDArray[np.int32] = np.zeros(0, np.int32)  # looks in a row at which the norm had grown
        self._since: NDArray[np.int64] = np.zeros(0, np.int64)
        self._knows_kind = False  # the loss holds an error that cannot be negative
        self._outward = 0  # looks in a row at which all matrices grew straight outward
        self._outward_since = 0
        self._condition, self._runaway = Condition("growing"), Condition("runaway")

    def grow(self, count: int) -> None:
        self._start.grow(count)
        self._last = grown(self._last, count, np.nan)
        self._rises = grown(self._rises, count, 0)
        self._since = grown(self._since, count, 0)

    @property
    def resting(self) -> bool:
        return True  # nothing is said of other frames, whatever is open

    def news(self, batch: FrameBatch) -> Flags:
        """Frames at which the norms are looked at, and those that may show an error below zero."""
        out = batch.with_any(_OF_THE_LOSS) | (batch.scalar("loss") < 0)
        places = batch.frames_with("weight")
        out[places] |= self._cadence.due(batch.steps[places].tolist())
        return out

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        norms, ids = view.row("weight_norm"), view.ids("weight")
        if norms is None or ids is None:
            return ()
        self._knows_kind |= view.scalar("loss_kind") > LossKind.UNKNOWN
        below = self._knows_kind and view.loss is not None and view.loss.value < 0 and view.loss.actors == 1
        if not self._cadence.is_due(view.step):
            return self._judge_runaway(view, below) if below else ()
        self._start.take(view)
        measured = ids[~np.isnan(norms)]
        now = norms[~np.isnan(norms)].astype(np.float64)
        rose = now > self._last[measured] * 1.01
        self._since[measured[rose & (self._rises[measured] == 0)]] = view.step
        self._rises[measured] = np.where(rose, self._rises[measured] + 1, 0)
        self._last[measured] = now
        return (*self._judge_runaway(view, below), *self._judge_growth(view))

    def _judge_growth(self, view: FrameView) -> tuple[Verdict, ...]:
        members = self._members(view)
        if not members:
            return self._condition.end()
        learning = view.loss is not None and view.loss.level < view.loss.first
        return self._condition.hold((members, learning), lambda: self._verdict(view, members, learning))

    def _judge_runaway(self, view: FrameView, below: bool) -> tuple[Verdict, ...]:
        """`below`: an error that cannot be negative is, so that a term must have been taken off it."""
        matrices = matrices_of(view.layout)
        if len(matrices) < 2:
            return ()
        lengths, ratios = matrices.values(view, "update_norm"), matrices.values(view, "update_ratio")
        norms = matrices.values(view, "weight_norm")
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            gained = norms * ratios / lengths - 1
            radial, alike = (
                (limit.RUNAWAY_RADIAL_BELOW, limit.RUNAWAY_ALIKE_BELOW)
                if below
                else (limit.RUNAWAY_RADIAL, limit.RUNAWAY_ALIKE)
            )
            outward = (gained > radial * ratios) & (gained > limit.RUNAWAY_RATE)
            if not below:
                outward &= norms > limit.RUNAWAY_BY * self._start.norm[matrices.ids]
        if not (outward.all() and np.std(gained) < alike * np.mean(gained)):
            self._outward = 0
            return self._runaway.end()
        self._outward_since = self._outward_since if self._outward else view.step
        self._outward += 1
        if self._outward < limit.RUNAWAY_FRAMES:
            return ()
        rate, since = float(np.mean(gained)), self._outward_since
        how = "share by which every weight matrix grows at each step, straight outward"
        summary = (
            f"All weight matrices grow by {rate:.1%} at every step, straight outward: something rewards their size."
        )
        evidence = (Evidence("update_ratio", None, rate, None, how),)
        return self._runaway.hold(
            True, lambda: Verdict("runaway", True, Severity.SEVERE, (), since, 0.93, summary, evidence)
        )

    def _members(self, view: FrameView) -> tuple[int, ...]:
        layout, structure = view.layout, structure_of(view.layout)
        matrices = structure.matrices
        # Beside a usual start, so that what starts tiny on purpose may grow.
        sizes = np.array([layout.layers[int(i)].parameter_count for i in matrices], np.float64)
        usual = 0.1 * np.sqrt(sizes / structure.fan_in[matrices])
        start = np.maximum(self._start.norm[matrices], usual)
        grew = (self._last[matrices] > limit.GROWN_BY * start) & (self._rises[matrices] >= limit.GROWING_FRAMES)
        grew &= layout.is_trainable[matrices]
        if grew.any():  # a few enormous weights are no growth: see WGT004
            largest, usual = view.all_layers("weight_max_abs")[matrices], view.all_layers("weight_abs_p95")[matrices]
            grew &= ~(largest > limit.OUTLIER * usual)
        return tuple(layout.in_order(matrices[grew]))

    def _verdict(self, view: FrameView, members: tuple[int, ...], learning: bool) -> Verdict:
        layout = view.layout
        how = "norm now, against the norm at the start"
        evidence = tuple(
            Evidence("weight_norm", layout.path(i), known(self._last[i]), known(self._start.norm[i]), how)
            for i in members[:3]
        )
        verb, still = ("has", "grows") if len(members) == 1 else ("have", "grow")
        summary = f"{name_layers(layout, members)} {verb} grown more than tenfold since the start, and still {still}."
        severity = Severity.INFO if learning else Severity.MODERATE
        trainable = int(layout.is_trainable[structure_of(layout).matrices].sum())
        layers = () if len(members) == trainable > 1 else members  # all of them: no layer's fault
        first_step = int(self._since[list(members)].min())
        return Verdict("growing", True, severity, layers, first_step, 0.8, summary, evidence)
