"""DAT002: a batch that is unlike the others, measured or suspected, and makes the loss leap."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

import numpy as np

from undertow.detect.engine import (
    Condition,
    Flags,
    FrameBatch,
    FrameView,
    Judgement,
    LayerIndex,
    Limit,
    Shared,
    Stage,
    Tracker,
    Wake,
    having,
)
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.remedies import GUARD_AGAINST_SPIKES, INSPECT_THE_BATCH
from undertow.detect.features.spike import Spike, SpikeWatch
from undertow.detect.features.wording import count_of
from undertow.schema import Evidence, Severity

_SIZES = ("input_std", "input_max_abs", "target_std")  # of the data of one batch; all positive
_LEAP = Limit(8.0, "robust deviations of the loss above the latest ones; healthy trainings: at most 7")


def _may_leap(batch: FrameBatch) -> Flags:
    """Losses that may be spikes, and changes of the learning rate, which explain one."""
    rate, usual = batch.scalar("lr"), batch.none()
    usual[1:] = rate[1:] == rate[:-1]
    usual &= (batch.loss("jump") <= _LEAP) & (batch.loss("actors") == 1) & (batch.loss("positive") == 1)
    return np.logical_not(usual)


class _Batches(Tracker):
    """`proof` is what is odd about this batch, where it was measured; `spikes` follows the loss."""

    wakes_on = Wake(_may_leap) | having("loss_kind", "input_std", "label_entropy")
    is_of_one_training = True

    known = Limit.sample(5, "measured batches to compare with")
    factor = Limit(5.0, "beyond the widest spread of the batches before")
    usual_pace = Limit(3.0, "times the median: longer steps may have thrown the weights")
    entropy = Limit(0.3, "of the least entropy of labels before: they are suddenly all alike")

    def __init__(self) -> None:
        self.spikes = SpikeWatch()
        self.proof: Evidence | None = None
        self.odd_step = -1  # the latest
        self._usual: dict[str, deque[float]] = {name: deque(maxlen=32) for name in _SIZES}
        self._entropies: deque[float] = deque(maxlen=32)
        self._paces: deque[float] = deque(maxlen=32)  # update over weight, median over matrices; the latest last

    @property
    def has_moved_as_usual(self) -> bool:
        """Whether the weights had, before this frame: then it is the data that changed."""
        return len(self._paces) > self.known and self._paces[-1] < self.usual_pace * median(self._paces)

    @property
    def is_calm(self) -> bool:
        return self.spikes.resting

    def follow(self, view: FrameView) -> None:
        self.spikes.observe(view)
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

    def _note_pace(self, view: FrameView) -> None:
        pace = middle(matrices_of(view.layout).update_ratios(view)) if "update" in view.frame.blocks else math.nan
        if math.isfinite(pace):
            self._paces.append(pace)

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


class BadBatch(Condition):
    """One batch, or a few, is not like the others, and the loss leaps with it.

    What it sees: A loss more than eight robust deviations above the latest ones and at least e times as large, together
        with what the batch itself was: inputs or targets five times further off than in any batch before, or labels
        that are suddenly all alike. Where the batch was not measured: a loss that leaps out of a calm course, is worse
        than that of the untrained model and is back within five steps, or is twenty times as high as that; or, after
        steps as long as those before, one that is as high as at the start for twenty-five losses and not learnt.
    Why it is bad: A single step on a broken batch can undo hundreds of good ones: gradients are as large as the batch
        is wrong.
    When it is wrong: Harder data change the loss, and neither the size of the inputs by such a factor nor for a few
        steps only. Other data for good (a new phase) look like a bad batch at first. Without a measurement of the
        batch, an optimizer near the edge of stability can look the same: confidence is low.
    References: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022 (arXiv 2204.02311), section 5.1.
    """

    code, variant, formerly = "DAT002", "bad-batch", "batch suspect odd-batch suspected-batch"
    stage, is_momentary = Stage.OPTIMIZER, True
    _batches = Shared(_Batches)
    meaning = "One bad batch can undo many good steps"
    remedies = (INSPECT_THE_BATCH, GUARD_AGAINST_SPIKES)

    leap = _LEAP
    ratio = Limit(2.718, "times the loss before")
    over_after = Limit.memory(20, "steps since the last odd batch: what it did has healed or not by then")
    batches = Limit.memory(5, "steps until the loss is back: what lasts longer is not of a few batches")
    as_high = Limit(0.85, "of the first losses…")
    stays_for = Limit.learning(25, "losses in a row: …another task, or harder data, is learnt by then")
    learnt_by = Limit(0.9, "of the level twelve losses before: it is being learnt")

    def __init__(self) -> None:
        self._is_measured = False  # what is open was seen in the batch itself
        self._layout: LayerIndex | None = None  # when the loss leapt: what the program changed explains it
        self._chance = 0.0
        self._leap: Spike | None = None  # after which the loss has been as high as at the start
        self._levels: list[float] = []  # since then

    @property
    def is_calm(self) -> bool:
        return self._leap is None and super().is_calm

    def observe(self, view: FrameView) -> Judgement | None:
        batches, loss = self._batches, view.loss
        if batches.proof is not None and loss is not None:
            return self._observe_proof(view.step, loss, batches.proof)
        if self._is_measured:
            self._is_measured = view.step - batches.odd_step <= self.over_after
            return self.stay() if self._is_measured else self.end()
        spike = batches.spikes.spike
        if loss is not None and self._stays(view, loss):
            leap = self._leap
            assert leap is not None
            return self.hold(("stays", leap.step), lambda: _describe_lasting(leap, loss))
        if spike is None or not spike.is_harmful:
            return self.end()
        is_short = spike.over_after is not None and spike.over_after <= self.batches
        is_proved = spike.step <= batches.odd_step <= spike.step + self.batches
        if is_proved or not (is_short or spike.was_of_a_batch):
            return self.stay()
        return self.hold((spike.step, is_short), lambda: _describe_suspect(spike))

    def _stays(self, view: FrameView, loss: Loss) -> bool:
        """The loss leapt though the weights had moved as before, and nothing can be learnt of what came since."""
        spikes = self._batches.spikes
        chance = chance_level(view)
        self._chance = chance if chance > 0 else self._chance
        is_same = self._layout is view.layout
        if self._batches.leaps(view) and spikes.is_natural and self._batches.has_moved_as_usual:
            self._leap, self._levels = spikes.spike, []
        self._layout = view.layout
        if self._leap is None or not is_same or loss.value < self.as_high * max(loss.start, self._chance):
            self._leap = None
            return False
        self._levels.append(loss.level)
        if self.is_open and len(self._levels) > self.stays_for:
            return True
        before = self._levels[-min(12, len(self._levels))]
        return len(self._levels) >= self.stays_for and not loss.level < self.learnt_by * before

    def _observe_proof(self, step: int, loss: Loss, proof: Evidence) -> Judgement | None:
        if not self._is_measured and (loss.jump <= self.leap or loss.ratio < self.ratio):
            return None
        self._is_measured = True
        return self.hold("measured", lambda: _describe(step, loss, proof))


def _describe(step: int, loss: Loss, proof: Evidence) -> Judgement:
    how = f"loss of the batch at step {step}, and at its best before"
    leap = Evidence("loss", None, loss.value, loss.best, how)
    summary = (
        f"The batch at step {step} is not like the others ({proof.quantity.replace('_', ' ')} {proof.value:.3g} "
        f"instead of {proof.expected:.3g}), and the loss leapt to {loss.value:.3g}."
    )
    return Judgement(Severity.SEVERE, (), step, 0.9, summary, (proof, leap))


def _describe_lasting(leap: Spike, loss: Loss) -> Judgement:
    how = "level of the loss since, and before; the steps before were as long as ever"
    summary = (
        f"The data changed at step {leap.step}: the loss leapt from {leap.before:.3g} to {leap.value:.3g} in one step, "
        "though the weights had moved as before, and nothing is learnt of what has come since."
    )
    return Judgement(
        Severity.SEVERE, (), leap.step, 0.75, summary, (Evidence("loss", None, loss.level, leap.before, how),)
    )


def _describe_suspect(spike: Spike) -> Judgement:
    lasted = "" if spike.over_after is None else f" and was back after {count_of(spike.over_after, 'step')}"
    evidence = (Evidence("loss", None, spike.value, spike.before, f"leapt in one step{lasted}"),)
    summary = (
        f"The batch at step {spike.step} was probably bad: the loss leapt from {spike.before:.3g} to "
        f"{spike.value:.3g} in one step{lasted}."
    )
    return Judgement(Severity.MODERATE, (), spike.step, 0.6, summary, evidence)
