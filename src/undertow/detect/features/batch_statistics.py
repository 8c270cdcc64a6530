"""Batches that are not like those before them, and the leaps of the loss that a batch may explain."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

import numpy as np

from undertow.detect.engine import Flags, FrameBatch, FrameView, Limit, Tracker, Wake, having
from undertow.detect.features.spike import SpikeWatch
from undertow.schema import Evidence

_SIZES = ("input_std", "input_max_abs", "target_std")  # of the data of one batch; all positive
LEAP = Limit(8.0, "robust deviations of the loss above the latest ones; healthy trainings: at most 7")


def _may_leap(batch: FrameBatch) -> Flags:
    """Losses that may be spikes, and changes of the learning rate, which explain one."""
    rate, usual = batch.scalar("lr"), batch.none()
    usual[1:] = rate[1:] == rate[:-1]
    usual &= (batch.loss("jump") <= LEAP) & (batch.loss("actors") == 1) & (batch.loss("positive") == 1)
    return np.logical_not(usual)


class BatchStatistics(Tracker):
    """`proof` is what is odd about this batch, where it was measured; `spikes` follows the loss."""

    wakes_on = Wake(_may_leap) | having("loss_kind", "input_std", "label_entropy")
    is_of_one_training = True
    order = ("odd-batch", "suspected-batch")

    known = Limit(5, "measured batches to compare with")
    factor = Limit(5.0, "beyond the widest spread of the batches before")
    entropy = Limit(0.3, "of the least entropy of labels before: they are suddenly all alike")

    def __init__(self) -> None:
        self.spikes = SpikeWatch()
        self.proof: Evidence | None = None
        self.odd_step = -1  # the latest
        self._usual: dict[str, deque[float]] = {name: deque(maxlen=32) for name in _SIZES}
        self._entropies: deque[float] = deque(maxlen=32)

    @property
    def is_calm(self) -> bool:
        return self.spikes.resting

    def follow(self, view: FrameView) -> None:
        self.spikes.observe(view)
        scalars = view.frame.scalars
        is_measured = "input_std" in scalars or "label_entropy" in scalars
        self.proof = self._compare(scalars) if is_measured else None
        if view.loss is None:
            self.proof = None
        if self.proof is not None:
            self.odd_step = view.step

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        self.spikes.pass_over(batch, first, last)

    def _compare(self, scalars: Mapping[str, float]) -> Evidence | None:
        """Batches that are not odd are what later ones are compared with."""
        found: Evidence | None = None
        for name, usual in self._usual.items():
            value = scalars.get(name, math.nan)
            if not 0 < value < math.inf:
                continue
            if len(usual) >= self.known:
                middle = median(usual)
                factor = max(value / middle, middle / value)
                spread = max(max(usual) / middle, middle / min(usual))
                if factor > self.factor * spread:
                    found = Evidence(name, None, value, middle, "of this batch, and of the batches before it")
                    continue
            usual.append(value)
        entropy = scalars.get("label_entropy", math.nan)
        if entropy >= 0:
            usual = self._entropies
            if len(usual) >= self.known and entropy < self.entropy * min(usual):
                return found or Evidence(
                    "label_entropy", None, entropy, median(usual), "labels of this batch are all alike"
                )
            usual.append(entropy)
        return found
