"""LSS004: the losses of micro-batches are added where their mean was meant."""

import math

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, where_scalar
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.remedies import AVERAGE_THE_MICRO_BATCHES
from undertow.detect.features.wording import known, of_themselves
from undertow.schema import Evidence, GradientState, Severity


class SummedMicroBatches(Condition):
    """The losses of micro-batches are added where their mean was meant.

    What it sees: Several backward passes to a step, a constant factor of 1 between the loss function and each of them,
        and a first loss that is as many times as large as one batch's would be for a model that knows nothing. The same
        where passes that had been divided by their number no longer are. It is an alarm when the steps are too large:
        updates of a fifth of the weights, or a loss that leaps, rises, or is no lower, or still that of a guess, after
        sixty steps.
    Why it is bad: The gradient, and under SGD the step, is larger by the number of micro-batches: the same as a
        learning rate that many times as high.
    When it is wrong: Under Adam the factor cancels, and a rate can be chosen for the sum: without harm this is only a
        hint. Losses with a summed reduction, several different losses with a backward pass each, and optimizers in turn
        are not reported.
    References: PyTorch documentation, "Automatic Mixed Precision examples: gradient accumulation".
    """

    code, variant, formerly = "LSS004", "summed-micro-batches", "added"
    places = ("backward",)
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    wakes_on = where_scalar("backward_count", lambda count: count >= 2)
    meaning = "Every step is as many times too large as there are micro-batches"
    remedies = (AVERAGE_THE_MICRO_BATCHES,)
    patience = Limit.chance(3, "steps with the same number of passes")
    early = Limit.start(5, "losses: a first loss is at chance level only at the start")
    within = Limit(1.35, "times the sum of losses at chance level: so two are told from one")
    within_of_many = Limit(1.8, "times that sum, where many are added: they are told from one more easily")
    many = Limit(4, "passes")
    large_update = Limit(0.2, "of the weights, median over matrices; healthy ones stay below 0.15")
    leap = Limit(1.5, "times the first loss: batch noise of an untrained model is a few per cent")
    jump = Limit(4.0, "deviations of a single loss")
    rise = Limit(1.1, "times the first loss")
    rise_after = Limit.start(10, "losses: the first ones may go up before they go down")
    flat_after = Limit.learning(60, "losses: healthy trainings have left their first loss by then")
    flat_above = Limit(0.98, "of the first losses, for the best so far…")
    at_chance = Limit(0.96, "…or of as many losses at chance level: what is above it at first is soon gone")

    def __init__(self) -> None:
        self._passes = 0.0
        self._is_sum: bool | None = None  # is the first loss a sum of this many? None: not known
        self._first_step = self._seen = 0
        self._harm, self._chance = "", math.nan
        self._was_averaged = False  # the passes of a step were once divided by their number
        self._is_late = False  # …and no longer are

    @property
    def is_calm(self) -> bool:
        return self._passes < 2

    def observe(self, view: FrameView) -> Judgement | None:
        passes = view.frame.scalars.get("backward_count", 1.0)
        loss = view.loss
        if passes < 2 and self._passes < 2:
            return None
        if loss is None:
            return self.stay()
        if _feeds_others(view):
            return self.end()
        ended = None
        if loss.actors > 1 or passes != self._passes:
            self._begin(view.step, passes)
            ended = self.end()
            if passes < 2 or loss.actors > 1:
                return ended
        self._seen += 1
        factor = view.scalar("loss_factor")
        if not math.isnan(factor):
            if abs(factor - 1.0) > 0.01:
                self._is_sum = False
                self._was_averaged |= abs(factor * passes - 1.0) < 0.01
                return self.end() or ended
            self._tell_sum(view, loss, passes)
        if not self._is_sum or self._seen < self.patience:
            return self.stay() or ended
        self._harm = self._harm or self._harm_of(view, loss)
        return self.hold(self._harm, lambda: self._describe(loss.first, int(passes), chance_level(view)))

    def _begin(self, step: int, passes: float) -> None:
        self._passes, self._is_sum, self._seen, self._harm = passes, None, 0, ""
        self._first_step = step

    def _tell_sum(self, view: FrameView, loss: Loss, passes: float) -> None:
        if self._was_averaged and not self._is_sum:
            if self._is_sum is False:
                self._begin(view.step, passes)
            self._is_sum = self._is_late = True
        chance = self._chance = chance_level(view)
        if self._is_sum is None and chance > 0 and loss.seen <= self.early:
            within = self.within_of_many if passes >= self.many else self.within
            self._is_sum = 1 / within < loss.first / (passes * chance) < within

    def _harm_of(self, view: FrameView, loss: Loss) -> str:
        """What shows that the steps are too large; empty when nothing does."""
        size = middle(matrices_of(view.layout).update_ratios(view)) if view.row("update_ratio") is not None else 0.0
        if size > self.large_update:
            return f"half of the weights changed by more than {of_themselves(size)} in one step"
        first = loss.first * (self._passes if self._is_late else 1.0)  # a sum of as many is as many times as large
        if loss.value > self.leap * first > 0 and loss.jump > self.jump:
            return "the loss jumped"
        if loss.seen >= self.rise_after and loss.level > self.rise * first > 0:
            return "the loss has risen"
        flat = loss.best > self.flat_above * loss.start > 0 or loss.best > self.at_chance * self._passes * self._chance
        if loss.seen >= self.flat_after and flat and not loss.falling:
            return "nothing was learnt"
        return ""

    def _describe(self, first: float, passes: int, chance: float) -> Judgement:
        evidence = [
            Evidence("backward_count", None, float(passes), None, "backward passes to a step, none divided"),
            Evidence("loss", None, first, known(chance), "first loss, and one batch's at chance level"),
        ]
        since = ""
        if self._is_late:
            evidence = [Evidence("loss_factor", None, 1.0, 1 / passes, "of each pass, and the one that averages them")]
            since = f" since step {self._first_step}"
        summary = f"The losses of {passes} micro-batches are added, not averaged{since}: steps are {passes}× as large"
        if not self._harm:
            return Judgement(Severity.MILD, (), self._first_step, 0.8, f"{summary}.", tuple(evidence))
        evidence.append(Evidence("update_ratio", None, None, None, self._harm))
        summary = f"{summary}, and {self._harm}."
        return Judgement(Severity.SEVERE, (), self._first_step, 0.9, summary, tuple(evidence))


def _feeds_others(view: FrameView) -> bool:
    """Whether some passes may be of losses for parameters that no optimizer holds, as of a forgotten generator."""
    holders, states = view.row("gradient_optimizer"), view.row("gradient_state")
    return (
        holders is not None and states is not None and bool(((holders == -1) & (states == GradientState.PRESENT)).any())
    )
