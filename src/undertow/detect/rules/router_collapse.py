"""ACT005."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.wording import name_layers
from undertow.detect.idle_experts import IdleExperts
from undertow.detect.rule import Said, Verdict, Waiting
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class RouterCollapse(Waiting):
    """A router sends practically everything to one expert, or to the same few.

    What it sees
    ------------
    The share of rows for which the busiest output of a gate is the largest, in the steps in which activations are
    sampled: 95 % and more at two sampled steps in a row, twelve steps apart at least, while the weights around it have
    moved by a tenth of their size (or for three hundred steps). Where several outputs are chosen to a row, it is the
    share of rows that choose the same ones. And experts that were trained before and get no gradient any more: half of
    those that stand below one module, as many as a gate has outputs, at ten measured steps in a row.

    Why it is bad
    -------------
    The other experts receive no rows and no gradient; they never improve, and so are never chosen. The model pays
    for many experts and has one, or a few. The loss may look perfectly healthy.

    When it is wrong
    ----------------
    A gate that is meant to settle on one branch (an architecture search, a mixture of two of which one is a fallback)
    does so on purpose. A new router may well send all rows one way; it ends within a few steps of learning, and so does
    not last while the rest of the model learns.

    References
    ----------
    Shazeer et al., "Outrageously Large Neural Networks", 2017 (arXiv 1701.06538), section 4.
    Fedus et al., "Switch Transformers", 2021 (arXiv 2101.03961), section 2.2.
    """

    code: ClassVar[str] = "ACT005"
    waits_for: ClassVar[frozenset[str]] = frozenset({"activation"})

    def __init__(self) -> None:
        self._full = LayerStreak()
        self._load: NDArray[np.float64] = np.zeros(0)
        self._outputs: NDArray[np.float64] = np.zeros(0)
        self._drift = np.nan  # way of the median matrix that moves; experts that are never chosen do not
        self._condition = Condition("router")
        self._idle, self._experts = Condition("idle"), IdleExperts()
        self._gates: dict[int, int] = {}  # outputs of each

    def grow(self, count: int) -> None:
        self._full.grow(count)
        self._experts.grow(count)
        self._load = grown(self._load, count, 0.0)
        self._outputs = grown(self._outputs, count, 0.0)

    @property
    def resting(self) -> bool:
        return not self._gates

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        """Of how far matrices have moved the latest is remembered."""
        for place in batch.frames_with("weight", first, last)[-1:]:
            self.observe(batch.view(place))
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        return (*self._observe_load(view), *self._observe_experts(view))

    def _observe_experts(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.ids("gradient") is None:
            return self._idle.stay()
        members = self._experts.observe(view, set(self._gates.values()))
        if not members or self._condition.is_open:
            return self._idle.end()
        return self._idle.hold(members, lambda: self._verdict_idle(view, members))

    def _verdict_idle(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        layout, since = view.layout, self._experts.since(members)
        gates = tuple(layout.in_order(self._gates))
        evidence = tuple(
            Evidence("gradient_norm", layout.path(i), 0.0, None, f"no gradient since step {since}, though it had one")
            for i in members[:3]
        )
        summary = (
            f"{name_layers(layout, gates)} no longer sends anything to {len(members)} of {self._gates[gates[0]]} "
            "experts: they get no gradient any more."
        )
        return Verdict("idle", True, Severity.MODERATE, (*gates, *members), since, 0.8, summary, evidence)

    def _observe_load(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.row("weight_drift") is not None:
            drift = matrices_of(view.layout).values(view, "weight_drift")
            self._drift = middle(drift[drift > limit.MOVED])
        loads, outputs, ids = view.row("router_load_max"), view.row("router_outputs"), view.ids("activation")
        if loads is None or outputs is None or ids is None:
            return ()
        measured = ~np.isnan(loads)
        if not measured.any():
            return ()
        self._gates |= dict(zip(ids[measured].tolist(), outputs[measured].astype(int).tolist(), strict=True))
        full = measured & (loads >= limit.ROUTER_LOAD) & (outputs >= 2)
        self._full.end(ids[measured & ~full])
        self._full.hold(ids[full], view.step)
        self._load[ids[full]], self._outputs[ids[full]] = loads[full], outputs[full]
        least = limit.ROUTER_STEPS if self._drift >= limit.ROUTER_DRIFT else limit.ROUTER_ANYWAY
        due = np.flatnonzero((self._full.length >= limit.ROUTER_FRAMES) & (self._full.span >= least))
        if not len(due):
            return self._condition.end()
        members = tuple(view.layout.in_order(due))
        return self._condition.hold(members, lambda: self._verdict(view, members))

    def _verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        layout, worst = view.layout, members[0]
        evidence = tuple(
            Evidence("router_load_max", layout.path(i), float(self._load[i]), float(1 / self._outputs[i]),
                     f"share of rows that go to the same of {self._outputs[i]:.0f} outputs")
            for i in members[:3]
        )  # fmt: skip
        summary = (
            f"{name_layers(layout, members)} sends {self._load[worst]:.0%} of all rows the same way, of "
            f"{self._outputs[worst]:.0f} there are: the others never learn."
        )
        first_step = int(self._full.since[list(members)].min())
        return Verdict("router", True, Severity.SEVERE, members, first_step, 0.92, summary, evidence)
