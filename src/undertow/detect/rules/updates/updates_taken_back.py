"""UPD002: updates that something takes back before the next step."""

import math

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.between_steps import WRITTEN, WrittenWeights
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import LET_ONLY_THE_OPTIMIZER_WRITE
from undertow.schema import Evidence, Severity


class UpdatesTakenBack(Condition):
    """Updates are taken back, whole or for the most part, because something writes to the weights between steps.

    What it sees: Step after step points the same way, yet most weights are never further from their start than one or
        two updates are long, or than half the way of a random walk, while norms change between one step and the next.
    Why it is bad: However large the updates are, they count as none: the weights stay where they began. The usual cause
        is an average of the weights that is copied back, or old values that are loaded at every step.
    When it is wrong: Weights that are projected on purpose to a small ball around their start.
    References: PyTorch documentation, `torch.optim.swa_utils.AveragedModel`: averages belong in a model of their
        own.
    """

    code, variant, formerly = "UPD002", "updates-taken-back", "undone"
    places = ("overwritten",)
    stage = Stage.STEP
    pace = ("update", 5)
    _weights = Shared(WrittenWeights)
    meaning = "The weights stay where they began, so nothing is learnt"
    remedies = (LET_ONLY_THE_OPTIMIZER_WRITE,)
    within = Limit(2.5, "lengths of one update from the start; eight that agree would come to five")
    agreement = Limit(0.5, "cosine of successive updates: they point the same way")
    share = Limit(0.6, "of the matrices")
    frames = Limit.chance(8, "measured steps in a row")
    short = Limit(0.5, "of the way of a random walk with such updates, since the start: less, though they agree")
    short_steps = Limit.sample(30, "steps after which that can be said: a walk needs some length")
    short_frames = Limit.chance(4, "measured steps in a row")
    short_written = Limit.chance(3, "measured steps before which most weights were written to")

    def __init__(self) -> None:
        self._taken_back = self._falls_short = 0  # measured steps in a row
        self._written = 0  # measured steps before which the program had written into most matrices

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._written

    def observe(self, view: FrameView) -> Judgement | None:
        change = self._weights.change
        if view.ids("weight") is None or view.ids("update") is None:
            return self.stay()
        if not self._written and (change is None or not (change > WRITTEN).any()):
            return None  # nobody ever writes to the weights: the usual case, and cheap
        matrices = matrices_of(view.layout)
        ratios, drifts = matrices.values(view, "update_ratio"), matrices.values(view, "weight_drift")
        known = np.isfinite(ratios) & np.isfinite(drifts)
        if not known.any() or has_learnt(view.loss):
            self._taken_back = self._falls_short = 0
            return self.end()
        agree = matrices.values(view, "update_cosine") > self.agreement
        if change is not None and not np.isnan(change).all():
            row = np.full(view.layout.count, np.nan)
            row[view.ids("weight")] = change
            rewritten = row[matrices.ids] > WRITTEN
            self._written += self._are_most(rewritten, known)
            back = rewritten & agree & (drifts < self.within * ratios)
            self._taken_back = self._taken_back + 1 if self._are_most(back, known) else 0
        # Updates that agree come to more than those of a random walk: its length grows with the root of the steps.
        steps = view.step - (self._weights.begun or 0)
        short = agree & (drifts < self.short * math.sqrt(steps) * ratios)
        lasting = steps >= self.short_steps and self._written >= self.short_written
        self._falls_short = self._falls_short + 1 if lasting and self._are_most(short, known) else 0
        if self._taken_back < self.frames and self._falls_short < self.short_frames:
            return self.stay() if self._taken_back or self._falls_short else self.end()
        return self.hold(True, lambda: self._describe(view, middle(ratios[known]), middle(drifts[known])))

    def _are_most(self, flags: NDArray[np.bool_], known: NDArray[np.bool_]) -> bool:
        return float(np.mean(flags[known])) >= self.share

    def _describe(self, view: FrameView, length: float, drift: float) -> Judgement:
        evidence = (
            Evidence("update_ratio", None, length, None,
                     f"update of step {view.step} over the weight, median of all matrices"),
            Evidence("weight_drift", None, drift, None,
                     "distance from the start over the weight: all updates together come to no more than that"),
        )  # fmt: skip
        since = self._weights.begun or 0 if self._falls_short else view.step - self._taken_back + 1
        summary = "Every update is undone before the next step: the program writes old values into the weights."
        return Judgement(Severity.SEVERE, (), since, 0.93, summary, evidence)
