"""Parameter groups whose learning rate is far from that of the others: what goes wrong then is their doing."""

import numpy as np

from undertow.detect.engine import Condition, Flags, FrameView, Judgement, LayerStreak, Limit, Stage, having
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class FastMembers:
    """Takes frames in order; `members` are its weight matrices, none while all rates are alike.

    `parameters` are all that it holds: a learnt scale or temperature is no matrix.
    """

    ahead = Limit(30.0, "times the rate of the others; adapters are trained with 16 times on purpose")
    long = Limit(0.03, "of the weight per step: 99 % of healthy matrices move less; shorter, and the others are slow")

    def __init__(self) -> None:
        self.members: tuple[int, ...] = ()
        self.parameters: tuple[int, ...] = ()
        self._longest = 0.0  # update over weight of its matrices, the longest so far

    @property
    def are_long(self) -> bool:
        """Whether its steps are long by themselves, as far as they are known."""
        return bool(self.parameters) and not (self.members and self._longest < self.long)

    def observe(self, view: FrameView) -> None:
        if self.members and "update" in view.frame.blocks:
            matrices = matrices_of(view.layout)
            steps = matrices.update_ratios(view)[np.isin(matrices.ids, self.members)]
            self._longest = max(self._longest, middle(steps) if np.isfinite(steps).any() else 0.0)
        ids, each = view.ids("optimizer"), view.row("optimizer_rate")
        if ids is None or each is None:
            return
        matrices = matrices_of(view.layout)
        rates = matrices.values(view, "optimizer_rate")
        known = np.sort(rates[np.isfinite(rates)])
        if len(known) < 2:
            return
        usual = float(known[(len(known) - 1) // 2])
        far = self.ahead * usual if usual > 0 else np.inf
        self.members = tuple(matrices.ids[rates > far].tolist())
        self.parameters = tuple(ids[each > far].tolist())


class SharedStep:
    """Rates and updates of all weight matrices at one step. Optimizers that share a step have a frame each: of those
    that come later in it, what is known is from the step before.
    """

    def __init__(self) -> None:
        self.rates = self.ratios = np.zeros(0)
        self._step, self._frames = -1, 0

    def gather(self, view: FrameView) -> Flags:
        """Takes a frame; which matrices it measures."""
        matrices = matrices_of(view.layout)
        rates, ratios = matrices.values(view, "optimizer_rate"), matrices.values(view, "update_ratio")
        here = np.isfinite(ratios) & (rates > 0)
        if view.step != self._step:
            if self._frames < 2 or len(self.rates) != len(rates):  # optimizers in turn are no groups of one training
                self.rates, self.ratios = np.full((2, len(rates)), np.nan)
            self._step, self._frames = view.step, 0
        self._frames += 1
        self.rates[here], self.ratios[here] = rates[here], ratios[here]
        return here


class GroupOutOfStep(Condition):
    """A group whose rate and steps are far from those of the others; a subclass says in which direction."""

    stage = Stage.OPTIMIZER
    wakes_on = having("optimizer")

    patience = Limit.chance(3, "measured steps in a row")

    def __init__(self) -> None:
        self._streak, self._all = LayerStreak(), SharedStep()

    def follow(self, view: FrameView, known: Flags, out_of_step: Flags, pace: str) -> Judgement | None:
        """Of the weight matrices: of which it is known, and of which it holds at this step."""
        ids = matrices_of(view.layout).ids.astype(np.int32)
        self._streak.end(ids[known & ~out_of_step])
        self._streak.hold(ids[out_of_step], view.step)
        members = tuple(ids[self._streak.length[ids] >= self.patience].tolist())
        return self.hold(members, lambda: self._describe(view, members, pace)) if members else self.end()

    def _describe(self, view: FrameView, members: tuple[int, ...], pace: str) -> Judgement:
        layout, matrices, rates, ratios = view.layout, matrices_of(view.layout), self._all.rates, self._all.ratios
        place, others = matrices.ids == members[0], ~np.isin(matrices.ids, members)
        rate, usual = float(rates[place][0]), middle(rates[others])
        evidence = (
            Evidence("optimizer_rate", layout.path(members[0]), rate, usual,
                     "its learning rate, against the median of the other matrices"),
            Evidence("update_ratio", layout.path(members[0]), float(ratios[place][0]), middle(ratios[others]),
                     "its update over its weight, against the median of the other matrices"),
        )  # fmt: skip
        summary = (
            f"Updates of {name_layers(layout, members)} are far {pace} than those of the others: the learning rate of "
            f"the group is {rate:.2g}, that of the others {usual:.2g}."
        )
        since = int(self._streak.since[list(members)].min())
        return Judgement(Severity.MODERATE, members, since, 0.75, summary, evidence)
