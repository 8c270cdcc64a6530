"""GRD006."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.matrices import Values, matrices_of, middle
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class GradientSpike:
    """A gradient far above all gradients before it.

    What it sees
    ------------
    The norm of all gradients against every one before it, from the sixteenth measured step on. Where it is ten times
    the largest so far, every weight matrix votes: its own norm, as a logarithm, must lie eight robust deviations
    (median and median absolute deviation of the latest 32) above its own past. It speaks when half of them do. It is
    an alarm when the weights were thrown about, by updates four times the largest before; where clipping or Adam took
    the excess away, or the update was not measured, it is a remark.

    Why it is bad
    -------------
    One such step can undo thousands, kill ReLU units for good, and poison the averages of Adam for hundreds of steps.
    A bad batch is the usual cause, a loss term that divides by something small another.

    When it is wrong
    ----------------
    Early gradients rise a lot in health, and a harder batch brings those of long ago back: neither is above everything
    seen before. In the zoo of healthy trainings the largest jump over the maximum is 3.9-fold (a change of data on
    purpose). A spike at a step that is not measured cannot be seen.

    References
    ----------
    Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022 (arXiv 2204.02311), section 5.1.
    Kumar et al., "ZClip: Adaptive Spike Mitigation for LLM Pre-Training", 2025 (arXiv 2504.02507).
    """

    code: ClassVar[str] = "GRD006"
    of_one_training: ClassVar[bool] = True

    def __init__(self) -> None:
        self._condition = Condition("spike")
        self._past: NDArray[np.float64] = np.zeros((0, 0))  # logarithms of the norms of the latest measured steps
        self._count = 0
        self._largest = 0.0  # norm of all gradients so far
        self._largest_step = 0.0  # update over weight so far, in the middle of all matrices
        self._leap = 0.0  # the largest update of this spike over that
        self._above = 0  # measured steps in a row above everything before

    def grow(self, count: int) -> None:
        """The past is of one set of matrices; a new one starts anew."""

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.skipped or view.ids("gradient") is None:
            return ()
        total = view.scalar("gradient_norm_total")
        if not 0 < total < math.inf:
            return ()
        matrices = matrices_of(view.layout)
        if self._past.shape[1] != len(matrices):
            self._past = np.full((thresholds.GRADIENT_SPIKE_WINDOW, len(matrices)), np.nan)
            self._count = 0
        if not len(matrices):
            return ()
        with np.errstate(divide="ignore", invalid="ignore"):
            sizes = np.log10(matrices.values(view, "gradient_norm"))
        step = middle(matrices.update_ratios(view)) if view.ids("update") is not None else math.nan
        known = self._count >= thresholds.GRADIENT_SPIKE_LEAST and self._largest > 0
        if known and total > thresholds.GRADIENT_SPIKE_TIMES * self._largest:
            self._above += 1
            if self._above <= thresholds.GRADIENT_SPIKE_LONGEST:
                if self._largest_step > 0 and step > self._leap * self._largest_step:
                    self._leap = step / self._largest_step
                return self._judge(view, sizes, total)
        self._above, self._leap = 0, 0.0
        self._past[self._count % len(self._past)] = np.where(np.isfinite(sizes), sizes, np.nan)
        self._count += 1
        self._largest = max(self._largest, total)
        if not math.isnan(step):
            self._largest_step = max(self._largest_step, step)
        return self._condition.end()

    @property
    def resting(self) -> bool:
        return not self._condition.is_open and self._above == 0

    def news(self, batch: FrameBatch) -> Flags:
        """Steps that may be above everything before: what was largest only grows."""
        if not batch.has("gradient"):
            return batch.none()
        is_new = self._past.shape[1] != len(matrices_of(batch.layout))
        largest = 0.0 if is_new else thresholds.GRADIENT_SPIKE_TIMES * self._largest
        return batch.scalar("gradient_norm_total") > largest

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        """Calm steps become the past."""
        matrices, totals = matrices_of(batch.layout), batch.scalar("gradient_norm_total")
        usable = ~batch.skipped & (totals > 0) & (totals < math.inf)
        calm, at = batch.none(), batch.at("gradient")
        calm[at] = usable[at]
        calm[:first] = calm[last:] = False
        rows = calm[at]
        if not rows.any() or not len(matrices):
            return ()
        sizes = np.log10(matrices.rows(batch, "gradient_norm")[rows])
        kept = sizes[-len(self._past) :]
        self._count += len(sizes)
        turn = np.arange(self._count - len(kept), self._count) % len(self._past)
        self._past[turn] = np.where(np.isfinite(kept), kept, np.nan)
        self._largest = max(self._largest, float(totals[calm].max()))
        moved = calm[batch.at("update")]
        if moved.any():
            largest = np.fmax.reduce(matrices.middles(batch, "update_ratios")[moved])
            self._largest_step = max(self._largest_step, float(np.nan_to_num(largest)))
        return ()

    def _judge(self, view: FrameView, sizes: Values, total: float) -> tuple[Verdict, ...]:
        past = self._past[: self._count]
        enough = np.count_nonzero(~np.isnan(past), axis=0) >= thresholds.GRADIENT_SPIKE_LEAST // 2
        usual = np.full(past.shape[1], np.nan)
        usual[enough] = np.nanmedian(past[:, enough], axis=0)
        spread = np.full(past.shape[1], np.nan)
        spread[enough] = 1.4826 * np.nanmedian(np.abs(past[:, enough] - usual[enough]), axis=0)
        away = (sizes - usual) / np.maximum(spread, thresholds.GRADIENT_SPIKE_LEAST_SPREAD)
        votes = away > thresholds.GRADIENT_SPIKE_DEVIATIONS
        if votes.sum() * 2 < np.count_nonzero(~np.isnan(away)) or not votes.any():
            return self._condition.end()
        severity = Severity.MILD
        if self._leap > thresholds.GRADIENT_SPIKE_LEAP:
            severe = self._leap > thresholds.GRADIENT_SPIKE_SEVERE
            severity = Severity.SEVERE if severe else Severity.MODERATE
        return self._condition.hold(severity, lambda: self._verdict(view, away, total, severity))

    def _verdict(self, view: FrameView, away: Values, total: float, severity: Severity) -> Verdict:
        layout, matrices = view.layout, matrices_of(view.layout)
        everywhere = bool((away > thresholds.GRADIENT_SPIKE_DEVIATIONS).sum() >= 0.8 * len(away))
        ranked = np.argsort(-np.nan_to_num(away, nan=-np.inf))
        layers = () if everywhere else tuple(
            int(matrices.ids[i]) for i in ranked if away[i] > thresholds.GRADIENT_SPIKE_DEVIATIONS
        )  # fmt: skip
        worst = int(matrices.ids[ranked[0]])
        times = total / self._largest
        evidence = [
            Evidence("gradient_norm_total", None, total, self._largest,
                     f"norm of all gradients at step {view.step}, beside the largest before"),
            Evidence("gradient_norm", layout.path(worst), float(away[ranked[0]]), None,
                     "robust deviations of the logarithm above its own past"),
        ]  # fmt: skip
        if self._leap > 0:
            how = "the largest update of these steps over the largest before"
            evidence.append(Evidence("update_ratio", None, self._leap, 1.0, how))
        where = "" if everywhere else f" in {name_layers(layout, layers)}"
        summary = f"At step {view.step} the gradient{where} was {times:,.0f} times the largest before it."
        if severity is Severity.MILD:
            summary = f"{summary[:-1]}; the weights were not thrown about."
        return Verdict(self._condition.key, True, severity, layers, view.step, 0.85, summary, tuple(evidence))
