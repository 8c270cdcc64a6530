"""Batches unlike the others: what was odd about one, where it was measured, and what the loss did with it."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

import numpy as np

from undertow.detect.engine import Flags, FrameBatch, FrameView, LayerIndex, Limit, Tracker, Wake, having
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.spike import Spike, SpikeWatch
from undertow.schema import Evidence

_SIZES = ("input_std", "input_max_abs", "target_std")  # of the data of one batch; all positive
_LATEST = 10  # losses that a leap is compared with: a training that learns was higher before
LEAP = Limit(8.0, "robust deviations of the loss above the latest ones; healthy trainings: at most 7")


def _may_leap(batch: FrameBatch) -> Flags:
    """Losses that may be spikes, and changes of the learning rate, which explain one."""
    rate, usual = batch.scalar("lr"), batch.none()
    usual[1:] = rate[1:] == rate[:-1]
    usual &= (batch.loss("jump") <= LEAP) & (batch.loss("actors") == 1) & (batch.loss("positive") == 1)
    return np.logical_not(usual)


class OddBatches(Tracker):
    """`proof` is what is odd about this batch, where it was measured; `spikes` follows the loss. `changed` is the leap
    after which the loss has been as high as at the start, though the weights had moved as before and were not thrown
    about since, and `is_lasting` whether nothing has been learnt of what came; `over` is such a leap, at the frame at
    which the loss is back.
    """

    wakes_on = Wake(_may_leap) | having("loss_kind", "input_std", "label_entropy")
    is_of_one_training = True

    absurd = Limit(100.0, "beyond that spread, of inputs: no other data, but another unit or a broken reading")
    known = Limit.sample(5, "measured batches to compare with")
    factor = Limit(5.0, "beyond the widest spread of the batches before")
    usual_pace = Limit(3.0, "times the median: longer steps may have thrown the weights")
    entropy = Limit(0.3, "of the least entropy of labels before: they are suddenly all alike")
    thrown = Limit(0.1, "of the weights in one step: it is they that what comes next fails by, whatever the data are")
    as_high = Limit(0.85, "of the first losses…")
    stays_for = Limit.learning(25, "losses in a row: …another task, or harder data, is learnt by then")
    learnt_by = Limit(0.9, "of the level twelve losses before: it is being learnt")
    back = Limit(0.5, "of the level of the losses before it, in one step: the bad data are over as suddenly")

    def __init__(self) -> None:
        self.spikes = SpikeWatch(_LATEST)
        self.proof: Evidence | None = None
        self.is_absurd = False  # the proof alone is enough, whatever the loss does
        self.odd_step = -1  # the latest
        self._usual: dict[str, deque[float]] = {name: deque(maxlen=32) for name in _SIZES}
        self._entropies: deque[float] = deque(maxlen=32)
        self._paces: deque[float] = deque(maxlen=32)  # update over weight, median over matrices; the latest last
        self.changed: Spike | None = None
        self.over: Spike | None = None
        self.is_lasting = False
        self._layout: LayerIndex | None = None  # when the loss leapt: what the program changed explains it
        self._chance = 0.0
        self._levels: list[float] = []  # of the loss, since it leapt

    @property
    def has_moved_as_usual(self) -> bool:
        """Whether the weights had, before this frame: then it is the data that changed."""
        return len(self._paces) > self.known and self._paces[-1] < self.usual_pace * median(self._paces)

    @property
    def is_calm(self) -> bool:
        return self.spikes.resting and self.changed is None

    def follow(self, view: FrameView) -> None:
        self.spikes.observe(view)
        self._follow_change(view)
        if not self.leaps(view):  # what a step does shows in the next loss
            self._note_pace(view)
        scalars = view.frame.scalars
        is_measured = "input_std" in scalars or "label_entropy" in scalars
        self.proof = self._compare(scalars) if is_measured else None
        if view.loss is None:
            self.proof = None
        if self.proof is not None:
            self.odd_step = view.step

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        self.spikes.pass_over(batch, first, last)
        for place in batch.frames_with("update", first, last)[-1:]:
            self._note_pace(batch.view(place))

    def leaps(self, view: FrameView) -> bool:
        return self.spikes.spike is not None and self.spikes.spike.step == view.step

    def _follow_change(self, view: FrameView) -> None:
        self.over, loss = None, view.loss
        if loss is None:
            return
        chance = chance_level(view)
        self._chance = chance if chance > 0 else self._chance
        is_same, self._layout = self._layout is view.layout, view.layout
        if self.leaps(view) and self.spikes.is_natural and self.has_moved_as_usual:
            self.changed, self.is_lasting, self._levels = self.spikes.spike, False, []
        if self.changed is None:
            return
        if not is_same or loss.value < self.as_high * max(loss.start, self._chance):
            was_bad = is_same and self.is_lasting and loss.value < self.back * self._levels[-1]
            self.over, self.changed, self.is_lasting = self.changed if was_bad else None, None, False
            return
        self._levels.append(loss.level)
        before = self._levels[-min(12, len(self._levels))]
        self.is_lasting |= len(self._levels) >= self.stays_for and not loss.level < self.learnt_by * before

    def _note_pace(self, view: FrameView) -> None:
        pace = middle(matrices_of(view.layout).update_ratios(view)) if "update" in view.frame.blocks else math.nan
        if math.isfinite(pace):
            self._paces.append(pace)
            if pace > self.thrown:
                self.changed, self.is_lasting = None, False

    def _compare(self, scalars: Mapping[str, float]) -> Evidence | None:
        """Batches that are not odd are what later ones are compared with."""
        found: Evidence | None = None
        self.is_absurd = False
        for name, usual in self._usual.items():
            value = scalars.get(name, math.nan)
            if not 0 < value < math.inf:
                continue
            if len(usual) >= self.known:
                middle = median(usual)
                factor = max(value / middle, middle / value)
                spread = max(max(usual) / middle, middle / min(usual))
                if factor > self.factor * spread:
                    self.is_absurd |= name != "target_std" and value > self.absurd * spread * middle
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
