"""DST001: replicas in one process no longer hold the same weights."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, Limit, Shared, Stage
from undertow.detect.features.replicas import AVERAGE_EVERY_GRADIENT, BROADCAST_THE_WEIGHTS, Replicas
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class DivergingReplicas(Condition):
    """Replicas of one model in one process have become different models.

    What it sees: Models with the same layers whose optimizers are given the same gradients for most of them are
        replicas, and stay replicas once they were equal. It opens when the weights of two of them differ by more than a
        millionth in three measured steps in a row.
    Why it is bad: Gradients averaged over different models are right for none of them. The loss looks fine for a long
        time; what is saved is one replica, and not the model that was trained.
    When it is wrong: Averaging weights now and then instead of gradients at each step (local SGD) makes replicas differ
        on purpose between two averages, and looks the same.
    References: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020 (arXiv
        2006.15704).
        Jiang et al., "Training with Confidence: Catching Silent Errors in Deep Learning Training", 2025 (arXiv
        2506.14813).
    """

    code, variant, formerly = "DST001", "diverging-replicas", "models"
    stage, is_exact = Stage.OPTIMIZER, True
    _replicas = Shared(Replicas)
    meaning = "The replicas train different models and average their gradients"
    remedies = (AVERAGE_EVERY_GRADIENT, BROADCAST_THE_WEIGHTS)

    apart = Limit(1e-6, "of the weight; replicas that are kept equal are equal to the last bit")
    patience = Limit(3, "measured steps in a row: replicas may step one after the other")

    def __init__(self) -> None:
        self._streak = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        if self._replicas.compared is None:
            return None
        one, other, distance = self._replicas.compared
        away = distance > self.apart
        parted = np.unique(np.concatenate([one[away], other[away]]))  # the first of three replicas has two partners
        together = np.setdiff1d(np.concatenate([one, other]), parted)
        self._streak.hold(parted.astype(np.int32), view.step)
        self._streak.end(together.astype(np.int32))
        members = away & (self._streak.length[one] >= self.patience)
        if not members.any():
            return self.stay() if away.any() else self.end()
        layers = tuple(view.layout.in_order(np.unique(np.concatenate([one[members], other[members]]))))
        return self.hold(layers, lambda: self._describe(view, layers, distance[members]))

    def _describe(self, view: FrameView, layers: tuple[int, ...], distance: NDArray[np.float64]) -> Judgement:
        how = "relative difference between replicas, whose optimizers were given the same gradients"
        evidence = (Evidence("weight_norm", view.layout.path(layers[0]), float(distance.max()), 0.0, how),)
        summary = f"Replicas of one model have diverged: {name_layers(view.layout, layers)} are no longer equal."
        since = int(self._streak.since[list(layers)].min())
        return Judgement(Severity.SEVERE, layers, since, 0.9, summary, evidence)
