"""UPD002: a parameter group that hardly moves while the others do."""

from dataclasses import replace

import numpy as np

from undertow.detect.engine import FrameView, Judgement, Limit
from undertow.detect.features.first_weights import FirstWeights
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.parameter_groups import GroupOutOfStep
from undertow.detect.features.progress import starts_low
from undertow.detect.features.remedies import RAISE_LEARNING_RATE, RAISE_THE_GROUP_RATE
from undertow.schema import Severity


class SlowGroup(GroupOutOfStep):
    """A parameter group's learning rate and steps are a hundredth of the others' or less.

    What it sees: The learning rate of each weight matrix and the length of its update over that of the weight, beside
        those in the middle of all, those of other optimizers that share the step among them; also where the group holds
        most of the model and its steps are less than three in 100,000. At three measured steps. A rate of zero is
        UPD003.
    Why it is bad: Its layers stay nearly as at the start, and the rest learns around that.
    When it is wrong: A group that hardly moves is a remark where its weights do not look as if drawn at random: what
        was trained before is often trained on slowly. Layer-wise decay over twelve layers makes a factor of 15, far
        below the limit.
    References: Karpathy, CS231n course notes, "Babysitting the learning process": updates of about a thousandth of
        the weight.
    """

    code, variant, formerly = "UPD002", "slow-group", "group"
    places = ("optimizer",)
    pace = ("update", 5)
    meaning = "The layers of this group hardly move, so the rest learns around them"
    remedies = (RAISE_THE_GROUP_RATE, RAISE_LEARNING_RATE)
    behind = Limit(100.0, "times the others' rate; layer-wise decay over twelve layers makes 15")
    steps_behind = Limit(100 / 3, "times the others' step: steps vary more than rates do")
    still = Limit(3e-5, "of the weight per step: it hardly moves by any measure")
    moving = Limit(1.5e-4, "of the weight per step: it does move")

    def __init__(self) -> None:
        super().__init__()
        self._first = FirstWeights()

    @property
    def is_calm(self) -> bool:
        return not self.is_open and self._first.has_seen_all

    def observe(self, view: FrameView) -> Judgement | None:
        self._first.take(view)
        if view.skipped or not len(matrices_of(view.layout)):
            return None
        if view.ids("update") is None or starts_low(view):
            return self.stay()
        here, rates, ratios = self._all.gather(view), self._all.rates, self._all.ratios
        known = np.isfinite(ratios)
        if known.sum() < 3 or not here.any():
            return self.stay()
        behind = known & (rates < middle(rates[known]) / self.behind)
        behind &= ratios < middle(ratios[known]) / self.steps_behind
        moves = known & (ratios > self.moving)
        if moves.any():  # where most hardly move, by any measure, while some do at a hundred times the rate
            behind |= known & (rates < float(np.median(rates[moves])) / self.behind) & (ratios < self.still)
        return self.follow(view, here, here & behind, "shorter")

    def _describe(self, view: FrameView, members: tuple[int, ...], pace: str) -> Judgement:
        judgement = super()._describe(view, members, pace)
        if self._first.is_new[list(members)].any():
            return judgement
        summary = f"{judgement.summary} They were not new when training began: that may be meant."
        return replace(judgement, severity=Severity.MILD, confidence=0.5, summary=summary)
