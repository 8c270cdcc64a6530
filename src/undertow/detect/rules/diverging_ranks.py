"""DST001."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import LayerStreak
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import known, name_layers
from undertow.detect.rule import Said, Verdict
from undertow.detect.twin_averages import TwinAverages
from undertow.detect.twins import Twins
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

Ids = NDArray[np.int64]


class DivergingRanks:
    """Replicas of one model have become different models.

    What it sees
    ------------
    In distributed trainings, the weights of each parameter that several ranks hold, compared after the step. They
    are the same to the last bit as long as every rank applies the same gradients. The finding opens when a replica
    is away from the first rank's by more than a millionth of its norm in three measured steps in a row, and names
    the rank. In one process, models with the same layers whose optimizers are given the same gradients for most of
    them are taken for replicas, too, and stay so when they were equal once; there the running averages of batch
    normalisations are compared as well, as they are before a forward pass.

    Why it is bad
    -------------
    Gradients averaged over different models are right for none of them. The loss looks fine for a long time; what is
    saved is one rank's model, and not the one that was trained.

    When it is wrong
    ----------------
    Parameters that belong to one rank on purpose (experts, private heads) are left alone only if their weights and
    gradients differ from the first step on. Averaging weights now and then instead of gradients at each step (local
    SGD) makes replicas differ on purpose between two averages, and looks the same.

    References
    ----------
    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020 (arXiv 2006.15704).
    Jiang et al., "Training with Confidence: Catching Silent Errors in Deep Learning Training", 2025 (arXiv 2506.14813).
    """

    code: ClassVar[str] = "DST001"

    def __init__(self) -> None:
        self._streak = LayerStreak()
        self._twins = Twins()
        self._ranks, self._models = Condition("ranks"), Condition("models")
        self._averages = TwinAverages()

    def grow(self, count: int) -> None:
        self._streak.grow(count)
        self._twins.grow(count)
        self._averages.grow(count)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.ids("rank") is not None:
            return self._judge_ranks(view)
        if not self._twins.exist_in(view.layout):
            return ()
        found = self._twins.observe(view)
        said = self._averages.observe(view, *self._twins.normalisations(view.layout))
        return said if found is None else (*said, *self._judge_models(view, *found))

    @property
    def resting(self) -> bool:
        return not (self._ranks.is_open or self._models.is_open or self._averages.is_open)

    def news(self, batch: FrameBatch) -> Flags:
        news = batch.none()
        if self._twins.exist_in(batch.layout):
            news[:] = True
        news[batch.frames_with("rank")] = True
        return news

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()

    def _judge_ranks(self, view: FrameView) -> tuple[Verdict, ...]:
        ids, distance = view.ids("rank"), view.row("rank_weight_distance")
        if ids is None or distance is None or np.isnan(distance).all():
            return self._ranks.stay()
        away = distance > limit.RANKS_APART
        self._follow(ids[away], ids[~away & ~np.isnan(distance)], view.step)
        members = ids[(self._streak.length[ids] >= limit.RANKS_FRAMES) & away]
        if not len(members):
            return self._ranks.stay() if away.any() else self._ranks.end()
        layers = tuple(view.layout.in_order(members))
        compared = int((~np.isnan(distance)).sum())
        return self._ranks.hold(layers, lambda: self._of_ranks(view, layers, compared))

    def _judge_models(self, view: FrameView, one: Ids, other: Ids, apart: NDArray[np.float64]) -> tuple[Verdict, ...]:
        away = apart > limit.RANKS_APART
        parted = np.unique(np.concatenate([one[away], other[away]]))  # the first of three replicas has two partners
        self._follow(parted, np.setdiff1d(np.concatenate([one, other]), parted), view.step)
        members = away & (self._streak.length[one] >= limit.RANKS_FRAMES)
        if not members.any():
            return self._models.stay() if away.any() else self._models.end()
        layers = tuple(view.layout.in_order(np.unique(np.concatenate([one[members], other[members]]))))
        return self._models.hold(layers, lambda: self._of_models(view, layers, float(apart[members].max())))

    def _follow(self, away: NDArray[np.integer], together: NDArray[np.integer], step: int) -> None:
        self._streak.hold(away.astype(np.int32), step)
        self._streak.end(together.astype(np.int32))

    def _of_ranks(self, view: FrameView, layers: tuple[int, ...], compared: int) -> Verdict:
        layout, weight = view.layout, view.all_layers("rank_weight_distance")
        gradient, farthest = view.all_layers("rank_gradient_distance"), view.all_layers("rank_farthest")
        worst = max(layers, key=lambda layer: weight[layer])
        rank = int(farthest[worst])
        evidence = [
            Evidence("rank_weight_distance", layout.path(worst), float(weight[worst]), 0.0,
                     f"distance of rank {rank}'s weight from the first rank's, over its norm, after step {view.step}")
        ]  # fmt: skip
        if known(float(gradient[worst])) is not None:
            evidence.append(
                Evidence("rank_gradient_distance", layout.path(worst), float(gradient[worst]), 0.0,
                         "the same of the gradients that the optimizers used")
            )  # fmt: skip
        everywhere = 2 * len(layers) > compared and compared > 2
        named = f"{len(layers)} of {compared} parameters" if everywhere else name_layers(layout, layers)
        summary = f"The ranks no longer train the same model: {named} differ between rank {rank} and the first rank."
        since = int(self._streak.since[list(layers)].min())
        return Verdict(
            "ranks", True, Severity.SEVERE, () if everywhere else layers, since, 1.0, summary, tuple(evidence)
        )

    def _of_models(self, view: FrameView, layers: tuple[int, ...], apart: float) -> Verdict:
        layout = view.layout
        evidence = (
            Evidence("weight_norm", layout.path(layers[0]), apart, 0.0,
                     "relative difference between replicas, whose optimizers were given the same gradients"),
        )  # fmt: skip
        summary = f"Replicas of one model have parted: {name_layers(layout, layers)} are no longer the same."
        since = int(self._streak.since[list(layers)].min())
        return Verdict("models", True, Severity.SEVERE, layers, since, 0.9, summary, evidence)
