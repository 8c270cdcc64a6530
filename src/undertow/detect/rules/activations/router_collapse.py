"""ACT005: a router that always chooses the same expert."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, LayerValues, Limit, Shared, Stage
from undertow.detect.features.remedies import BALANCE_THE_ROUTER
from undertow.detect.features.routers import Routers
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class RouterCollapse(Condition):
    """A router sends practically everything to one expert, or to the same few.

    What it sees: The share of rows for which the busiest output of a gate is the largest: 95 % and more at two sampled
        steps in a row, twelve steps apart at least, while the weights around it have moved by a tenth of their size (or
        for three hundred steps). Where several outputs are chosen to a row, it is the share of rows that choose the
        same ones.
    Why it is bad: The other experts receive no rows and no gradient; they never improve, and so are never chosen. The
        model pays for many experts and has one, or a few. The loss may look perfectly healthy.
    When it is wrong: A gate that is meant to settle on one branch (an architecture search, a mixture of two of which
        one is a fallback) does so on purpose. A new router may well send all rows one way; it ends within a few steps
        of learning.
    References: Shazeer et al., "Outrageously Large Neural Networks", 2017 (arXiv 1701.06538), section 4.
        Fedus et al., "Switch Transformers", 2021 (arXiv 2101.03961), section 2.2.
    """

    code, variant, formerly = "ACT005", "router-collapse", "router"
    places = ("initialisation", "total")
    stage = Stage.STEP
    _routers = Shared(Routers)
    meaning = "The other experts get no data, so they do not learn and their parameters are wasted"
    remedies = (BALANCE_THE_ROUTER,)
    load = Limit(0.95, "of the rows; a balanced router sends 1/n of them to each of n experts")
    frames = Limit.chance(2, "sampled steps in a row")
    steps = Limit.learning(
        12, "steps at least: what comes to a new router hardly differs yet, and that ends as soon as it learns"
    )
    drift = Limit(0.1, "of its size, by which the median matrix has moved: by then a router has learnt")
    steps_anyway = Limit.learning(300, "steps that are enough however little the model has moved")

    _load = LayerValues(np.float64, 0.0)

    def __init__(self) -> None:
        self._full = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        loads, outputs, ids = view.row("router_load_max"), view.row("router_outputs"), view.ids("activation")
        if loads is None or outputs is None or ids is None:
            return None
        measured = ~np.isnan(loads)
        if not measured.any():
            return None
        full = measured & (loads >= self.load) & (outputs >= 2)
        self._full.follow(ids, measured, full, view.step)
        self._load[ids[full]] = loads[full]
        least = self.steps if self._routers.drift >= self.drift else self.steps_anyway
        due = np.flatnonzero((self._full.length >= self.frames) & (self._full.span >= least))
        return self.hold_of(view, due, self._describe)

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        layout, experts = view.layout, self._routers.experts
        evidence = tuple(
            Evidence("router_load_max", layout.path(i), float(self._load[i]), 1 / experts[i],
                     f"share of rows that go to the same of {experts[i]} outputs")
            for i in members[:3]
        )  # fmt: skip
        worst = members[0]
        summary = (
            f"{name_layers(layout, members)} routes {self._load[worst]:.0%} of all rows to the same one of "
            f"{experts[worst]} experts ({1 / experts[worst]:.0%} is balanced): the others never learn."
        )
        return Judgement(Severity.SEVERE, members, self._full.began(members), 0.92, summary, evidence)
