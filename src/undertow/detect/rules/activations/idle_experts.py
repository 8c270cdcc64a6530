"""ACT005: experts that no longer get any rows."""

from collections import defaultdict

import numpy as np

from undertow.detect.engine import (
    Condition,
    FrameView,
    Judgement,
    LayerIndex,
    LayerStreak,
    LayerValues,
    Limit,
    Shared,
    Stage,
)
from undertow.detect.features.remedies import BALANCE_THE_ROUTER
from undertow.detect.features.routers import Routers, experts_of
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, GradientState, Severity


class IdleExperts(Condition):
    """Half of a router's experts or more get no gradient, or none any more.

    What it sees: As many modules as a gate has outputs (four at least), numbered below one parent, of which half or
        more have no gradient at ten measured steps in a row. Each was trained before; or none of them ever was, though
        the gate is trained and stands before them, and the weights around have moved by a tenth of their size.
    Why it is bad: Experts that receive no rows never improve, and so are never chosen. The model pays for many experts
        and has a few.
    When it is wrong: Experts that are switched off on purpose while others are trained.
    References: Fedus et al., "Switch Transformers", 2021 (arXiv 2101.03961), section 2.2.
    """

    code, variant, formerly = "ACT005", "idle-experts", "idle"
    places = ("initialisation", "parameter")
    stage = Stage.STEP
    _routers = Shared(Routers)
    meaning = "These experts get no data, so they do not learn and their parameters are wasted"
    remedies = (BALANCE_THE_ROUTER,)
    frames = Limit.chance(10, "measured steps in a row without a gradient: small batches leave experts out, too")
    steps = Limit.learning(30, "steps over which these are spread at least: dozens of batches left all of them out")
    least = Limit(4, "experts: of two or three, one may well be out for a while")
    share = Limit(0.5, "of the experts of a gate")
    drift = Limit(0.1, "of its size, by which the median matrix has moved: by then a new router has learnt to choose")

    _moved = LayerValues(np.bool_, False)

    def __init__(self) -> None:
        self._still = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        if view.ids("gradient") is None:
            return self.stay()
        members = self._idle(view)
        if not members or "router-collapse" in self._routers.open_variants:
            return self.end()
        return self.hold(members, lambda: self._describe(view.layout, members))

    def _idle(self, view: FrameView) -> tuple[int, ...]:
        """A parameter of each idle expert, where enough of the experts of a gate are idle."""
        ids, norms, states = view.ids("gradient"), view.row("gradient_norm"), view.row("gradient_state")
        outputs = set(self._routers.gates(view.layout).values())
        if ids is None or norms is None or states is None or view.skipped or not outputs:
            return ()
        rows = view.layout.derived(_rows_of_experts)
        moving = norms > 0
        self._moved[ids[moving]] = True
        self._still.end(ids[moving])
        self._still.hold(ids[(states == GradientState.NONE) | (norms == 0)], view.step)
        lasting = self._still.lasted(int(self.frames)) & (self._still.span >= self.steps)
        for number in outputs & rows.keys():
            for start in range(0, len(rows[number]), number):
                experts = rows[number][start : start + number]
                idle = [parameters for parameters in experts if lasting[parameters].all()]
                if len(experts) < self.least or not self.share * number <= len(idle) < number:
                    continue
                dropped = [parameters for parameters in idle if self._moved[parameters].all()]
                if self.share * number <= len(dropped):
                    return tuple(parameters[0] for parameters in dropped)
                if self._are_passed_over(view, experts):
                    return tuple(parameters[0] for parameters in idle)
        return ()

    def _are_passed_over(self, view: FrameView, experts: list[list[int]]) -> bool:
        """Of experts that were never trained: a gate before the others is, and has had the time to choose."""
        layout, known = view.layout, self._routers.gates(view.layout)
        gates = [layer.id for layer in layout.layers.parameters if int(layout.module[layer.id]) in known]
        chosen = [i for parameters in experts for i in parameters if self._moved[i]]
        if not chosen or not self._moved[gates].any() or not self._routers.drift >= self.drift:
            return False
        return float(layout.order[gates].min()) < float(layout.order[chosen].min())

    def _describe(self, layout: LayerIndex, members: tuple[int, ...]) -> Judgement:
        since = int(self._still.since[list(members)].max())
        experts = self._routers.gates(layout)
        gates = tuple(layout.in_order(experts))
        named, count = name_layers(layout, gates), f"{len(members)} of {experts[gates[0]]} experts"
        how, summary = "", f"{named} sends nothing to {count}: they have never had a gradient."
        if self._moved[list(members)].any():
            how = ", though it had one"
            summary = f"{named} no longer sends anything to {count}: they get no gradient any more."
        evidence = tuple(
            Evidence("gradient_norm", layout.path(i), 0.0, None, f"no gradient since step {since}{how}")
            for i in members[:3]
        )
        return Judgement(Severity.MODERATE, (*gates, *members), since, 0.8, summary, evidence)


def _rows_of_experts(layout: LayerIndex) -> dict[int, list[list[int]]]:
    """By how many there are."""
    found: defaultdict[int, list[list[int]]] = defaultdict(list)
    for rows in experts_of(layout).values():
        found[len(rows)] += rows.values()
    return dict(found)
