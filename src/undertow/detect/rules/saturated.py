"""ACT002."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.module_structure import NONE, ModuleStructure, structure_of
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Verdict, Waiting
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class Saturated(Waiting):
    """Most outputs of a bounded activation function lie at its flat ends.

    What it sees
    ------------
    The share of outputs of hidden Tanh, Sigmoid and similar modules beyond 0.99 (0.01 and 0.99 for a sigmoid), and of
    tanh and sigmoid applied as functions to the output of a layer, in the steps in which activations are sampled. A
    layer is reported when it is more than half at two sampled steps in a row. Named are the layers whose sums are too
    large and the functions behind them, in execution order.

    Why it is bad
    -------------
    At its flat ends the function has almost no slope, so almost no gradient passes, and the layers before it stop
    learning. The causes are inputs that are not scaled, weights that began or became too large, or a learning rate
    that threw them there.

    When it is wrong
    ----------------
    The last function of a model may saturate by success (a confident probability, a black background), so it is not
    judged. Hidden gates that learn to be open or shut can saturate on purpose, and so can what they gate: a sigmoid or
    tanh that is called as a function, and multiplies something, is not judged either. Nor is anything where nine tenths
    of the loss are gone: units that decide are what was learnt then.

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
    """

    code: ClassVar[str] = "ACT002"
    waits_for: ClassVar[frozenset[str]] = frozenset({"activation"})

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._hidden: NDArray[np.bool_] = np.zeros(0, bool)
        self._flat = LayerStreak()
        self._share: NDArray[np.float64] = np.zeros(0)
        self._condition = Condition("saturated")

    def grow(self, count: int) -> None:
        self._flat.grow(count)
        self._hidden = grown(self._hidden, count, False)
        self._share = grown(self._share, count, 0.0)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        shares, ids = view.row("activation_saturated_fraction"), view.ids("activation")
        if shares is None or ids is None:
            return ()
        measured = ~np.isnan(shares)
        if not measured.any():
            return ()
        if view.layout is not self._layout:
            self._look(view.layout)
        flat = (shares > limit.SATURATED_SHARE) & self._hidden[ids]
        if view.loss is not None and view.loss.remaining < limit.SATURATED_LEARNT:
            flat[:] = False
        self._flat.end(ids[measured & ~flat])
        self._flat.hold(ids[flat], view.step)
        self._share[ids[flat]] = shares[flat]
        due = np.flatnonzero(self._flat.length >= limit.SATURATED_FRAMES)
        if not len(due):
            return self._condition.end()
        members = tuple(view.layout.in_order(due))
        return self._condition.hold(members, lambda: self._verdict(view, members))

    def _look(self, layout: LayerIndex) -> None:
        self._layout = layout
        structure = structure_of(layout)
        self._hidden[:] = False
        self._hidden[[i for i in structure.sequence if structure.is_hidden(i)]] = True

    def _verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        layout, structure = view.layout, structure_of(view.layout)
        layers = [layer for i in members for layer in _guilty(structure, i) if layer != NONE]
        how = f"share of outputs at the flat ends at step {view.step}"
        evidence = [
            Evidence("activation_saturated_fraction", layout.path(i), float(self._share[i]), None, how)
            for i in members[:3]
        ]
        summary = f"Most outputs of {_functions(view, members)} lie at the flat ends, where hardly any gradient passes."
        first_step = int(self._flat.since[list(members)].min())
        worst = float(self._share[list(members)].max())
        severity = Severity.SEVERE if worst > 0.8 else Severity.MODERATE
        return Verdict(
            "saturated", True, severity, tuple(dict.fromkeys(layers)), first_step, 0.9, summary, (*evidence,)
        )


def _guilty(structure: ModuleStructure, module: int) -> tuple[int, ...]:
    """The layer whose sums are too large, and the function, where it is a module."""
    return (module,) if structure.owns(module) else (structure.source(module), module)


def _functions(view: FrameView, members: tuple[int, ...]) -> str:
    named = name_layers(view.layout, members)
    return f"the functions behind {named}" if structure_of(view.layout).owns(members[0]) else named
