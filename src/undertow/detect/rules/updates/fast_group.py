"""UPD001: a parameter group that takes far larger steps than the others."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, Limit, Stage, having
from undertow.detect.features.fast_group import FastGroup as FastMembers
from undertow.detect.features.matrices import Values, matrices_of, middle
from undertow.detect.features.remedies import LOWER_THE_GROUP_RATE
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class FastGroup(Condition):
    """A parameter group's learning rate is far above that of the others, and its steps are far longer.

    What it sees: A group whose learning rate is thirty times that in the middle of all matrices, whose steps are a
        tenth of its weights (by their usual length) and longer than the others' in about the same proportion, at three
        measured steps.
    Why it is bad: Its layers jump over what they aim at while the others learn, and what they feed changes all the
        time.
    When it is wrong: Adapters are trained with 16 times the rate on purpose, and new heads with ten times: both are
        below the limit.
    References: Karpathy, CS231n course notes, "Babysitting the learning process": updates of about a thousandth of
        the weight.
    """

    code, variant, formerly = "UPD001", "fast-group", "group"
    stage = Stage.STEP
    pace, is_of_one_training = ("update", 3), True
    wakes_on = having("optimizer")
    meaning = "The weights of this group change so much in one step that they forget what they had learnt"
    remedies = (LOWER_THE_GROUP_RATE,)
    step = Limit(0.1, "of the usual length of the weight: such a step can undo many")
    ahead = Limit(9.0, "times the step in the middle of all matrices, where the rate is thirty times as high")
    patience = Limit(3, "measured steps in a row")

    def __init__(self) -> None:
        self._fast, self._ahead = FastMembers(), LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        if view.skipped:
            return None
        self._fast.observe(view)
        if view.ids("update") is None:
            return None
        matrices = matrices_of(view.layout)
        ratios, rates = matrices.update_ratios(view), matrices.values(view, "optimizer_rate")
        if not np.isfinite(ratios).any():
            return None
        known = np.isfinite(ratios) & np.isfinite(rates)
        if known.sum() < 3:
            return self.stay()
        # Over the usual length of its weights: their own is soon made of nothing but these steps.
        steps = matrices.values(view, "update_norm") / matrices.usual_norm
        is_ahead = known & np.isin(matrices.ids, self._fast.members)
        is_ahead &= (steps > self.step) & (steps > self.ahead * middle(ratios[known]))
        ids = matrices.ids.astype(np.int32)
        self._ahead.end(ids[known & ~is_ahead])
        self._ahead.hold(ids[is_ahead], view.step)
        members = tuple(int(i) for i in ids if self._ahead.length[i] >= self.patience)
        if not members:
            return self.end()
        return self.hold(members, lambda: self._describe(view, members, ratios, rates))

    def _describe(self, view: FrameView, members: tuple[int, ...], ratios: Values, rates: Values) -> Judgement:
        layout, place = view.layout, matrices_of(view.layout).ids == members[0]
        rate, ratio = float(rates[place][0]), float(ratios[place][0])
        evidence = (
            Evidence("optimizer_rate", layout.path(members[0]), rate, middle(rates),
                     "its learning rate, beside that in the middle of all matrices"),
            Evidence("update_ratio", layout.path(members[0]), ratio, middle(ratios),
                     "its step over its weight, beside that in the middle of all matrices"),
        )  # fmt: skip
        takes, its = ("takes", "its") if len(members) == 1 else ("take", "their")
        summary = (
            f"{name_layers(layout, members)} {takes} far larger steps than the others: {its} group's learning rate is "
            f"{rate:.2g}, that of the others {middle(rates):.2g}."
        )
        since = int(self._ahead.since[list(members)].min())
        return Judgement(Severity.MODERATE, members, since, 0.75, summary, evidence)
