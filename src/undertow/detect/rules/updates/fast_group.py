"""UPD001: a parameter group that takes far larger steps than the others."""

import numpy as np

from undertow.detect.engine import FrameView, Judgement, Limit
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.parameter_groups import FastMembers, GroupOutOfStep
from undertow.detect.features.remedies import LOWER_THE_GROUP_RATE


class FastGroup(GroupOutOfStep):
    """A parameter group's learning rate is far above that of the others, and its steps are far longer.

    What it sees: A group whose learning rate is thirty times that of the median matrix, whose steps are a tenth of its
        weights (by their usual length) and longer than the others' in about the same proportion, at three measured
        steps.
    Why it is bad: Its layers jump over what they aim at while the others learn, and what they feed changes all the
        time.
    When it is wrong: Adapters are trained with 16 times the rate on purpose, and new heads with ten times: both are
        below the limit.
    References: Karpathy, CS231n course notes, "Babysitting the learning process": updates of about a thousandth of
        the weight.
    """

    code, variant, formerly = "UPD001", "fast-group", "group"
    places = ("optimizer",)
    pace, is_of_one_training = ("update", 3), True
    meaning = "The weights of this group change so much in one step that they forget what they had learned"
    remedies = (LOWER_THE_GROUP_RATE,)
    step = Limit(0.1, "of the usual length of the weight: such a step can undo many")
    ahead = Limit(9.0, "times the step in the middle of all matrices, where the rate is thirty times as high")

    def __init__(self) -> None:
        super().__init__()
        self._fast = FastMembers()

    def observe(self, view: FrameView) -> Judgement | None:
        if view.skipped:
            return None
        self._fast.observe(view)
        if view.ids("update") is None:
            return None
        matrices = matrices_of(view.layout)
        ratios = matrices.update_ratios(view)
        known = self._all.gather(view)
        if known.sum() < 3:
            return self.stay()
        # Over the usual length of its weights: their own is soon made of nothing but these steps.
        steps = matrices.values(view, "update_norm") / matrices.usual_norm
        ahead = known & np.isin(matrices.ids, self._fast.members)
        ahead &= (steps > self.step) & (steps > self.ahead * middle(ratios[known]))
        return self.follow(view, known, ahead, "longer")
