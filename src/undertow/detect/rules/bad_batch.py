"""DAT002."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import ClassVar

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.spike import Spike, SpikeWatch
from undertow.detect.features.wording import count_of
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

SIZES = ("input_std", "input_max_abs", "target_std")  # of the data of one batch; all positive

_OF_BATCHES = frozenset({"input_std", "label_entropy"})


class BadBatch:
    """One batch, or a few, is not like the others, and the loss leaps with it.

    What it sees
    ------------
    A loss more than eight robust deviations above the latest ones and at least e times as large, together with what
    the batch itself was: inputs or targets five times further off than in any batch before, or labels that are
    suddenly all alike. Where the very batch was not measured, a loss that leaps from one step to the next out of a
    calm course and is back within five steps, or is twenty times as high as that of the untrained
    model.

    Why it is bad
    -------------
    A single step on a broken batch can undo hundreds of good ones: gradients are as large as the batch is wrong.

    When it is wrong
    ----------------
    Harder data change the loss, and neither the size of the inputs by such a factor nor for a few steps only. Without a
    measurement of the batch, an optimizer near the edge of stability can look the same; confidence is lower then. Other
    data for good (a new phase) look like a bad batch at first.

    References
    ----------
    Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022 (arXiv 2204.02311), section 5.1.
    """

    code: ClassVar[str] = "DAT002"
    of_one_training: ClassVar[bool] = True

    def __init__(self) -> None:
        self._condition, self._suspect = Condition("batch"), Condition("suspect")
        self._watch = SpikeWatch()
        self._usual: dict[str, deque[float]] = {name: deque(maxlen=32) for name in SIZES}
        self._entropies: deque[float] = deque(maxlen=32)
        self._odd_step = -1

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return self._watch.resting and not (self._condition.is_open or self._suspect.is_open)

    def news(self, batch: FrameBatch) -> Flags:
        return self._watch.news(batch) | batch.with_any(_OF_BATCHES)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        self._watch.pass_over(batch, first, last)
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        self._watch.observe(view)
        scalars = view.frame.scalars
        loss = view.loss
        proof = self._proof(scalars) if "input_std" in scalars or "label_entropy" in scalars else None
        if proof is None or loss is None:
            if self._condition.is_open and view.step - self._odd_step > thresholds.BATCH_OVER:
                return self._condition.end()
            return self._condition.stay() or self._observe_suspect()
        self._odd_step = view.step
        leaps = loss.jump > thresholds.SPIKE_DEVIATIONS and not loss.ratio < thresholds.SPIKE_RATIO
        if not leaps and not self._condition.is_open:
            return ()
        return self._condition.hold(None, lambda: self._verdict(view.step, loss, proof))

    def _observe_suspect(self) -> tuple[Verdict, ...]:
        spike = self._watch.spike
        if spike is None or not spike.is_harmful:
            return self._suspect.end()
        short = spike.over_after is not None and spike.over_after <= thresholds.BATCHES
        proved = spike.step <= self._odd_step <= spike.step + thresholds.BATCHES
        if proved or not (short or spike.was_of_a_batch):
            return self._suspect.stay()
        return self._suspect.hold((spike.step, short), lambda: self._verdict_suspect(spike))

    def _verdict_suspect(self, spike: Spike) -> Verdict:
        lasted = "" if spike.over_after is None else f" and was back after {count_of(spike.over_after, 'step')}"
        evidence = Evidence("loss", None, spike.value, spike.before, f"leapt in one step{lasted}")
        summary = (
            f"The batch at step {spike.step} was probably bad: the loss leapt from {spike.before:.3g} to "
            f"{spike.value:.3g} in one step{lasted}."
        )
        return Verdict("suspect", True, Severity.MODERATE, (), spike.step, 0.6, summary, (evidence,))

    def _proof(self, scalars: Mapping[str, float]) -> Evidence | None:
        """What is odd about this batch, if anything; batches that are not odd are what later ones are compared with."""
        found: Evidence | None = None
        for name, usual in self._usual.items():
            value = scalars.get(name, math.nan)
            if not 0 < value < math.inf:
                continue
            if len(usual) >= thresholds.BATCH_KNOWN:
                middle = median(usual)
                factor = max(value / middle, middle / value)
                spread = max(max(usual) / middle, middle / min(usual))
                if factor > thresholds.BATCH_FACTOR * spread:
                    found = Evidence(name, None, value, middle, "of this batch, and of the batches before it")
                    continue
            usual.append(value)
        entropy = scalars.get("label_entropy", math.nan)
        if entropy >= 0:
            usual = self._entropies
            if len(usual) >= thresholds.BATCH_KNOWN and entropy < thresholds.BATCH_ENTROPY * min(usual):
                return found or Evidence(
                    "label_entropy", None, entropy, median(usual), "labels of this batch are all alike"
                )
            usual.append(entropy)
        return found

    def _verdict(self, step: int, loss: Loss, proof: Evidence) -> Verdict:
        leap = Evidence(
            "loss", None, loss.value, loss.best, f"loss of the batch at step {step}, and at its best before"
        )
        summary = (
            f"The batch at step {step} is not like the others ({proof.quantity.replace('_', ' ')} {proof.value:.3g} "
            f"instead of {proof.expected:.3g}), and the loss leapt to {loss.value:.3g}."
        )
        return Verdict("batch", True, Severity.SEVERE, (), step, 0.9, summary, (proof, leap))
