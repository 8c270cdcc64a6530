"""UPD002: a parameter group that hardly moves while the others do."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, Limit, Stage, having
from undertow.detect.features.first_weights import FirstWeights
from undertow.detect.features.matrices import Values, matrices_of, middle
from undertow.detect.features.progress import starts_low
from undertow.detect.features.remedies import RAISE_LEARNING_RATE, RAISE_THE_GROUP_RATE
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class SlowGroup(Condition):
    """A parameter group's learning rate and steps are a hundredth of the others' or less.

    What it sees: The learning rate of each weight matrix and the length of its update over that of the weight, beside
        those in the middle of all; also where the group holds most of the model and its steps are less than three in
        100,000. At three measured steps. A rate of zero is UPD003.
    Why it is bad: Its layers stay nearly as at the start, and the rest learns around that.
    When it is wrong: A group that hardly moves is a remark where its weights do not look as if drawn at random: what
        was trained before is often trained on slowly. Layer-wise decay over twelve layers makes a factor of 15, far
        below the limit.
    References: Karpathy, CS231n course notes, "Babysitting the learning process": updates of about a thousandth of
        the weight.
    """

    code, variant, formerly = "UPD002", "slow-group", "group"
    stage = Stage.STEP
    pace = ("update", 5)
    wakes_on = having("optimizer")
    meaning = "The layers of this group hardly move, so the rest learns around them"
    remedies = (RAISE_THE_GROUP_RATE, RAISE_LEARNING_RATE)
    behind = Limit(100.0, "times the others' rate; layer-wise decay over twelve layers makes 15")
    steps_behind = Limit(100 / 3, "times the others' step: steps vary more than rates do")
    still = Limit(3e-5, "of the weight per step: it hardly moves by any measure")
    moving = Limit(1.5e-4, "of the weight per step: it does move")
    patience = Limit(3, "measured steps in a row")

    def __init__(self) -> None:
        self._behind, self._first = LayerStreak(), FirstWeights()

    @property
    def is_calm(self) -> bool:
        return not self.is_open and self._first.has_seen_all

    def observe(self, view: FrameView) -> Judgement | None:
        self._first.take(view)
        matrices = matrices_of(view.layout)
        if view.skipped or not len(matrices):
            return None
        if view.ids("update") is None or starts_low(view):
            return self.stay()
        ratios, rates = matrices.values(view, "update_ratio"), matrices.values(view, "optimizer_rate")
        known = np.isfinite(ratios) & (rates > 0)
        if known.sum() < 3:
            return self.stay()
        ids = matrices.ids.astype(np.int32)
        behind = known & (rates < middle(rates[known]) / self.behind)
        behind &= ratios < middle(ratios[known]) / self.steps_behind
        behind |= self._most_behind(known, ratios, rates)
        self._behind.end(ids[known & ~behind])
        self._behind.hold(ids[behind], view.step)
        members = tuple(int(i) for i in ids if self._behind.length[i] >= self.patience)
        if not members:
            return self.end()
        return self.hold(members, lambda: self._describe(view, members, ratios, rates))

    def _most_behind(self, known: NDArray[np.bool_], ratios: Values, rates: Values) -> NDArray[np.bool_]:
        """Where most hardly move, by any measure, while some do at a hundred times the rate."""
        moves = known & (ratios > self.moving)
        if not moves.any():
            return moves
        usual = float(np.median(rates[moves]))
        return known & (rates < usual / self.behind) & (ratios < self.still)

    def _describe(self, view: FrameView, members: tuple[int, ...], ratios: Values, rates: Values) -> Judgement:
        layout, ids = view.layout, matrices_of(view.layout).ids
        place, others = ids == members[0], ~np.isin(ids, members)
        rate, usual = float(rates[place][0]), middle(rates[others])
        evidence = (
            Evidence("optimizer_rate", layout.path(members[0]), rate, usual,
                     "its learning rate, beside that in the middle of the other matrices"),
            Evidence("update_ratio", layout.path(members[0]), float(ratios[place][0]), middle(ratios[others]),
                     "its step over its weight, beside that in the middle of the other matrices"),
        )  # fmt: skip
        verb, its = ("moves", "its") if len(members) == 1 else ("move", "their")
        summary = (
            f"{name_layers(layout, members)} hardly {verb} while the others do: {its} group's learning rate is "
            f"{rate:.2g}, that of the others {usual:.2g}."
        )
        severity, confidence = Severity.MODERATE, 0.75
        if not self._first.is_new[list(members)].any():
            severity, confidence = Severity.MILD, 0.5
            summary += " They were not new when training began: that may be meant."
        since = int(self._behind.since[list(members)].min())
        return Judgement(severity, members, since, confidence, summary, evidence)
