"""GRD006: a gradient far above all before it."""

import math

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.matrices import Values, matrices_of
from undertow.detect.features.remedies import GUARD_AGAINST_SPIKES, INSPECT_THE_BATCH, WARM_UP
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class GradientSpike(Condition):
    """A gradient far above all gradients before it.

    What it sees: The norm of all gradients, ten times the largest so far, from the sixteenth measured step on. Every
        weight matrix then votes: its own norm, as a logarithm, must lie eight robust deviations above its own latest
        32. Reported when half of them do; it is an alarm when the weights were thrown about, by updates four times the
        largest before.
    Why it is bad: One such step can undo thousands, kill ReLU units for good, and poison the averages of Adam for
        hundreds of steps. A bad batch is the usual cause, a loss term that divides by something small another.
    When it is wrong: Early gradients rise a lot in healthy runs, and a harder batch brings those of long ago back:
        neither is above everything seen before. The largest jump of a healthy training is 3.9-fold (a change of data on
        purpose). After updates that leap under a usual gradient it follows from them, and is a remark. A spike at a
        step that is not measured cannot be seen.
    References: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022 (arXiv 2204.02311), section
        5.1.
        Kumar et al., "ZClip: Adaptive Spike Mitigation for LLM Pre-Training", 2025 (arXiv 2504.02507).
    """

    code, variant, formerly = "GRD006", "gradient-spike", "spike"
    stage, is_momentary, is_vague = Stage.STEP, True, True
    remedies = (GUARD_AGAINST_SPIKES, INSPECT_THE_BATCH, WARM_UP)
    needs = frozenset({"gradient"})
    is_of_one_training = True

    window = Limit.sample(32, "measured steps that a norm is compared with: few enough to follow a trend")
    least = Limit.sample(16, "measured steps before anything is said: the first gradients rise a lot in health")
    times = Limit(10.0, "times the largest norm before; healthy: below 4, on purpose-changed data, 1.7 without")
    deviations = Limit(8.0, "robust deviations: norms have heavy tails, 2.5 would alarm every hundred steps")
    least_spread = Limit(0.05, "decades; norms that hardly vary make any change look large")
    leap = Limit(4.0, "times the largest update before: the weights were thrown about")
    severe_leap = Limit(30.0, "times the largest update before: hardly anything of what was learnt is left")
    thrown = Limit(0.1, "of the weights in one update, under a usual gradient: what comes next follows from it")
    longest = Limit.memory(10, "measured steps; what lasts longer is no spike")

    def __init__(self) -> None:
        self._past: NDArray[np.float64] = np.zeros((0, 0))  # norms of the latest measured steps
        self._count = 0
        self._largest = 0.0  # norm of all gradients so far
        self._largest_step = 0.0  # update over weight so far, in the middle of all matrices
        self._leap = 0.0  # the largest update of this spike over that
        self._above = 0  # measured steps in a row above everything before
        self._step = math.nan  # update over weight, at the measured step before
        self._thrown = -(10**9)  # the latest measured step with a leap of the updates under a usual gradient

    def observe(self, view: FrameView) -> Judgement | None:
        total = view.scalar("gradient_norm_total")
        if view.skipped or view.ids("gradient") is None or not 0 < total < math.inf:
            return None
        matrices = matrices_of(view.layout)
        if self._past.shape[1] != len(matrices):  # the past is of one set of matrices
            self._past = np.full((int(self.window), len(matrices)), np.nan)
            self._count = 0
        if not len(matrices):
            return None
        norms, step = matrices.values(view, "gradient_norm"), matrices.middle(view, "update_ratios")
        if self._count >= self.least and total > self.times * self._largest > 0:
            self._above += 1
            if self._above <= self.longest:
                if self._largest_step > 0 and step > self._leap * self._largest_step:
                    self._leap = step / self._largest_step
                return self._judge(view, norms, total)
        self._above, self._leap = 0, 0.0
        if step > self.thrown and step > self.leap * self._step:
            self._thrown = self._count
        self._step = self._step if math.isnan(step) else step
        self._past[self._count % len(self._past)] = norms
        self._count += 1
        self._largest = max(self._largest, total)
        if step > self._largest_step:
            self._largest_step = step
        return self.end()

    def _judge(self, view: FrameView, norms: Values, total: float) -> Judgement | None:
        past = np.log10(self._past[: self._count])
        past[~np.isfinite(past)] = np.nan
        enough = np.count_nonzero(~np.isnan(past), axis=0) >= self.least // 2
        usual, spread = np.full((2, past.shape[1]), np.nan)
        usual[enough] = np.nanmedian(past[:, enough], axis=0)
        spread[enough] = 1.4826 * np.nanmedian(np.abs(past[:, enough] - usual[enough]), axis=0)
        away = (np.log10(norms) - usual) / np.maximum(spread, self.least_spread)
        votes = away > self.deviations
        if votes.sum() * 2 < np.count_nonzero(~np.isnan(away)) or not votes.any():
            return self.end()
        severity = Severity.MILD
        if self._leap > self.leap and self._count - self._thrown > self.longest:
            severity = Severity.SEVERE if self._leap > self.severe_leap else Severity.MODERATE
        return self.hold(severity, lambda: self._describe(view, away, total, severity))

    def _describe(self, view: FrameView, away: Values, total: float, severity: Severity) -> Judgement:
        layout, ids = view.layout, matrices_of(view.layout).ids
        is_everywhere = bool((away > self.deviations).sum() >= 0.8 * len(away))
        ranked = np.argsort(-np.nan_to_num(away, nan=-np.inf))
        layers = () if is_everywhere else tuple(int(ids[i]) for i in ranked if away[i] > self.deviations)
        evidence = [
            Evidence("gradient_norm_total", None, total, self._largest,
                     f"norm of all gradients at step {view.step}, against the largest before"),
            Evidence("gradient_norm", layout.path(int(ids[ranked[0]])), float(away[ranked[0]]), None,
                     "robust standard deviations above its own history, in logarithms"),
        ]  # fmt: skip
        if self._leap > 0:
            how = "the largest update of these steps over the largest before"
            evidence.append(Evidence("update_ratio", None, self._leap, 1.0, how))
        where = "" if is_everywhere else f" in {name_layers(layout, layers)}"
        end = "; the updates stayed as small as before." if severity is Severity.MILD else "."
        if self._leap > self.leap and severity is Severity.MILD:
            end = ": earlier updates, under usual gradients, had thrown the weights about."
        summary = (
            f"At step {view.step} the gradient{where} was {total / self._largest:,.0f} times the largest before it"
        )
        return Judgement(severity, layers, view.step, 0.85, summary + end, tuple(evidence))
