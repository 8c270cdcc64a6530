"""DST001: replicas in one process with running averages of their own."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, Limit, Shared, Stage
from undertow.detect.features.replicas import AVERAGE_EVERY_GRADIENT, BROADCAST_THE_WEIGHTS, Replicas
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class UnsharedRunningAverages(Condition):
    """Batch normalisations of replicas keep running averages of their own.

    What it sees: Replicas in one process (models with the same layers whose optimizers are given the same gradients):
        the running averages of their batch normalisations, as they are before a forward pass. It opens when two of them
        differ by more than a ten-thousandth in three measured steps in a row.
    Why it is bad: Each replica normalises with statistics of its own share of the data. In training nothing shows; in
        evaluation the saved replica uses averages that fit a part of the data only.
    When it is wrong: Where the statistics are averaged once, at the end of the training, the averages differ until
        then.
    References: PyTorch documentation, `torch.nn.SyncBatchNorm` and `broadcast_buffers` of DistributedDataParallel.
    """

    code, variant, formerly = "DST001", "unshared-running-averages", "averages"
    stage, is_exact = Stage.OPTIMIZER, True
    _replicas = Shared(Replicas)
    meaning = "Each replica normalises with statistics of its own, so evaluation depends on which one is saved"
    remedies = (BROADCAST_THE_WEIGHTS, AVERAGE_EVERY_GRADIENT)

    apart = Limit(1e-4, "of the larger; averages that are shared are equal to the last bit before a forward pass")
    patience = Limit(3, "measured steps in a row: buffers may be exchanged every other step")

    def __init__(self) -> None:
        self._streak = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._replicas.are_followed:
            return None
        one, other = self._replicas.normalisations(view.layout)
        if view.row("norm_average") is None or not len(one):
            return self.stay()
        values = view.all_layers("norm_average").astype(np.float64)
        larger = np.fmax(np.abs(values[one]), np.abs(values[other]))
        distance = np.abs(values[one] - values[other]) / np.fmax(larger, 1e-30)
        known, away = ~np.isnan(distance), distance > self.apart
        if not known.any():
            return self.stay()
        for ids in (one, other):
            self._streak.end(ids[known & ~away].astype(np.int32))
            self._streak.hold(ids[away].astype(np.int32), view.step)
        members = away & (self._streak.length[one] >= self.patience)
        if not members.any():
            return self.stay() if away.any() else self.end()
        layers = tuple(view.layout.in_order(np.concatenate([one[members], other[members]])))
        farthest = float(distance[members].max())
        return self.hold(layers, lambda: self._describe(view, layers, farthest))

    def _describe(self, view: FrameView, layers: tuple[int, ...], distance: float) -> Judgement:
        how = "relative difference between the replicas' running means, while their weights are the same"
        evidence = (Evidence("norm_average", view.layout.path(layers[0]), distance, 0.0, how),)
        named = name_layers(view.layout, layers)
        summary = f"Replicas of one model keep running averages of their own: {named} are no longer equal."
        since = int(self._streak.since[list(layers)].min())
        return Judgement(Severity.MODERATE, layers, since, 0.9, summary, evidence)
