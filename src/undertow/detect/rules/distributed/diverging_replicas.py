"""DST001: replicas in one process no longer hold the same weights, or the same running averages."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, Limit, Shared, Stage
from undertow.detect.features.replicas import AVERAGE_EVERY_GRADIENT, BROADCAST_THE_WEIGHTS, Ids, Replicas
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Finding, Remedy, Severity


class DivergingReplicas(Condition):
    """Replicas of one model in one process have become different models, or keep running averages of their own.

    What it sees: Models with the same layers whose optimizers are given the same gradients for most of them are
        replicas, and stay replicas once they were equal. It opens when, in three measured steps in a row, the weights
        of two of them differ by more than a millionth, or the running averages of their batch normalisations, as they
        are before a forward pass, by more than a ten-thousandth.
    Why it is bad: Gradients averaged over different models are right for none of them. The loss looks fine for a long
        time; what is saved is one replica, and not the model that was trained. With averages of its own, a replica
        normalises with statistics of its share of the data, and fails in evaluation.
    When it is wrong: Averaging weights, or statistics, now and then instead of gradients at each step (local SGD) makes
        replicas differ on purpose between two averages, and looks the same.
    References: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020 (arXiv
        2006.15704).
        Jiang et al., "Training with Confidence: Catching Silent Errors in Deep Learning Training", 2025 (arXiv
        2506.14813).
        PyTorch documentation, `torch.nn.SyncBatchNorm` and `broadcast_buffers` of DistributedDataParallel.
    """

    code, variant, formerly = "DST001", "diverging-replicas", "models averages unshared-running-averages"
    stage, is_exact = Stage.OPTIMIZER, True
    _replicas = Shared(Replicas)
    meaning = "The replicas are different models, and which one is saved decides what was trained"
    remedies = (AVERAGE_EVERY_GRADIENT, BROADCAST_THE_WEIGHTS)

    apart = Limit(1e-6, "of the weight; replicas that are kept equal are equal to the last bit")
    averages_apart = Limit(1e-4, "of the larger average; shared ones are equal to the last bit before a forward pass")
    patience = Limit.chance(3, "measured steps in a row: replicas may step, or exchange buffers, one after the other")

    def __init__(self) -> None:
        self._streak = LayerStreak()
        self._parted = {"weight_norm": False, "norm_average": False}  # when last told

    def observe(self, view: FrameView) -> Judgement | None:
        compared = self._replicas.compared
        if compared is not None:
            found = self._compare(view, "weight_norm", *compared, self.apart)
            if found is not None:
                return found
        averages = self._replicas.averages(view)
        if averages is not None and not self._parted["weight_norm"]:
            found = self._compare(view, "norm_average", *averages, self.averages_apart)
            if found is not None:
                return found
        if compared is None and averages is None:
            return self.stay() if self._parted["norm_average"] and self._replicas.are_followed else None
        return self.stay() if any(self._parted.values()) else self.end()

    def _compare(
        self, view: FrameView, quantity: str, one: Ids, other: Ids, distance: NDArray[np.float64], apart: float
    ) -> Judgement | None:
        """What is found; None when the two sides of all pairs are equal, or not known to differ for long enough."""
        away = distance > apart
        self._parted[quantity] = bool(away.any())
        parted = np.unique(np.concatenate([one[away], other[away]]))  # the first of three replicas has two partners
        together = np.setdiff1d(np.concatenate([one, other]), parted)
        self._streak.hold(parted.astype(np.int32), view.step)
        self._streak.end(together.astype(np.int32))
        members = away & (self._streak.length[one] >= self.patience)
        if not members.any():
            return None
        layers = tuple(view.layout.in_order(np.unique(np.concatenate([one[members], other[members]]))))
        farthest = float(distance[members].max())
        return self.hold((quantity, layers), lambda: self._describe(view, quantity, layers, farthest))

    def _describe(self, view: FrameView, quantity: str, layers: tuple[int, ...], farthest: float) -> Judgement:
        named, since = name_layers(view.layout, layers), self._streak.began(layers)
        if quantity == "weight_norm":
            how = "relative difference between replicas, whose optimizers were given the same gradients"
            summary, severity = f"Replicas of one model have diverged: {named} are no longer equal.", Severity.SEVERE
        else:
            how = "relative difference between the replicas' running means, while their weights are the same"
            summary = f"Replicas of one model keep running averages of their own: {named} are no longer equal."
            severity = Severity.MODERATE
        evidence = (Evidence(quantity, view.layout.path(layers[0]), farthest, 0.0, how),)
        return Judgement(severity, layers, since, 0.9, summary, evidence)

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        of_averages = any(evidence.quantity == "norm_average" for evidence in finding.evidence)
        return cls.remedies[::-1] if of_averages else cls.remedies
