"""OPT003."""

from __future__ import annotations

import math
from collections import deque
from typing import ClassVar

from undertow.detect import thresholds
from undertow.detect.loss_trend import Loss
from undertow.detect.rule import Verdict
from undertow.detect.view import View
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class LossSpike:
    """The loss leaps up out of a calm course, and comes back.

    What it sees
    ------------
    A loss more than eight robust deviations above the median of the latest ones, on a logarithmic scale, at least e
    times as large, and twice as large as any of the thirty losses before it. It is a hint when it happens and an alarm
    once the loss has come back to near where it was within a few steps, for then it was no change of task.

    Why it is bad
    -------------
    The steps taken in a spike undo work, and the next spike may not end. Typical causes are a rate near the edge of
    what the model bears, an optimizer whose second moment lags behind, or a bad batch (DAT002).

    When it is wrong
    ----------------
    Losses that differ from step to step by design (several tasks, a term added every tenth step) have been as high
    before. A restart of the learning rate explains a spike and is left alone. A jump that stays is
    harder data or divergence (OPT001). No false alarm in the zoo.

    References
    ----------
    Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022 (arXiv 2204.02311), section 5.1.
    Wortsman et al., "Stable and low-precision training for large-scale vision-language models", 2023
    (arXiv 2304.13013).
    """

    code: ClassVar[str] = "OPT003"

    def __init__(self) -> None:
        self._rate = math.nan
        self._rate_rose = -(10**9)
        self._recent: deque[float] = deque(maxlen=thresholds.SPIKE_CALM)
        self._spike: Loss | None = None
        self._before = 0.0
        self._back = 0  # losses in a row that are back where they were
        self._open: Verdict | None = None

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def observe(self, view: View) -> tuple[Verdict, ...]:
        loss = view.loss
        if loss is None or not loss.positive or loss.actors > 1:
            return () if self._open is None else (self._open,)
        rate = view.frame.scalars.get("lr", self._rate)
        if rate > 2 * self._rate:
            self._rate_rose = view.step
        self._rate = rate
        if self._spike is not None:
            self._recent.append(loss.value)
            return self._follow(loss)
        spikes = (
            loss.jump > thresholds.SPIKE_DEVIATIONS
            and loss.ratio > thresholds.SPIKE_RATIO
            and len(self._recent) == thresholds.SPIKE_CALM
            and loss.value > thresholds.SPIKE_ABOVE_RECENT * max(self._recent)
            and view.step - self._rate_rose > thresholds.LEAP_PATIENCE
        )
        self._recent.append(loss.value)
        if not spikes:
            return self._end()
        self._spike, self._before, self._back = loss, loss.value / loss.ratio, 0
        self._open = self._verdict(loss, Severity.MILD, "")
        return (self._open,)

    def _follow(self, loss: Loss) -> tuple[Verdict, ...]:
        """After a spike: has the loss come back?"""
        spike = self._spike
        assert spike is not None
        assert self._open is not None
        since = loss.step - spike.step
        self._back = self._back + 1 if loss.value < thresholds.SPIKE_BACK * self._before else 0
        if self._back >= thresholds.SPIKE_BACK_FOR:
            self._spike = None
            if spike.value > thresholds.SPIKE_ABOVE_START * spike.start:
                self._open = self._verdict(spike, Severity.MODERATE, f" and came back within {since} steps")
        elif since > thresholds.SPIKE_LASTS:
            self._spike = None
        return (self._open,)

    def _end(self) -> tuple[Verdict, ...]:
        if self._open is None:
            return ()
        self._open = None
        return (Verdict("spike", holds=False),)

    def _verdict(self, spike: Loss, severity: Severity, ending: str) -> Verdict:
        how = f"loss at step {spike.step}, and the level before it"
        evidence = Evidence("loss", None, spike.value, self._before, how)
        summary = f"The loss leapt from {self._before:.3g} to {spike.value:.3g} at step {spike.step}{ending}."
        return Verdict("spike", True, severity, (), spike.step, 0.7, summary, (evidence,))
