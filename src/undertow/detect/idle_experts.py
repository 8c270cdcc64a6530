"""Experts that a router no longer sends anything: they stand side by side, and get no gradient any more."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from undertow.detect import thresholds as limit
from undertow.detect.engine.consecutive import LayerStreak
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.schema.quantities import GradientState


class IdleExperts:
    """Of as many modules as a gate has outputs, numbered below one parent, those without a gradient in a row of steps.

    Each was trained before, so that it is none that was never meant to run.
    """

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._rows: dict[int, list[list[int]]] = {}  # by their number: the parameters of each expert
        self._still = LayerStreak()
        self._moved = np.zeros(0, bool)

    def grow(self, count: int) -> None:
        self._still.grow(count)
        self._moved = np.concatenate([self._moved, np.zeros(max(0, count - len(self._moved)), bool)])

    def observe(self, view: FrameView, outputs: set[int]) -> tuple[int, ...]:
        """A parameter of each idle expert, where half of the experts of a gate or more are; `outputs` of all gates."""
        ids, norms, states = view.ids("gradient"), view.row("gradient_norm"), view.row("gradient_state")
        if ids is None or norms is None or states is None or view.skipped or not outputs:
            return ()
        if view.layout is not self._layout:
            self._layout, self._rows = view.layout, _rows_of_experts(view.layout)
        moving = norms > 0
        self._moved[ids[moving]] = True
        self._still.end(ids[moving])
        self._still.hold(ids[(states == GradientState.NONE) | (norms == 0)], view.step)
        lasting = self._still.lasted(limit.IDLE_FRAMES) & (self._still.span >= limit.IDLE_STEPS) & self._moved
        for number in outputs & self._rows.keys():
            for start in range(0, len(self._rows[number]), number):
                experts = self._rows[number][start : start + number]
                idle = [parameters[0] for parameters in experts if lasting[parameters].all()]
                if len(experts) >= limit.IDLE_LEAST and number / 2 <= len(idle) < number:
                    return tuple(idle)
        return ()

    def since(self, members: tuple[int, ...]) -> int:
        return int(self._still.since[list(members)].max())


def _rows_of_experts(layout: LayerIndex) -> dict[int, list[list[int]]]:
    """Numbered children of one module, with the parameters below each; by how many there are."""
    children: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for layer in layout.layers.parameters:
        parts = layer.path.split(".")
        for place, part in enumerate(parts):
            if part.isdigit():
                children[".".join(parts[:place])][part].append(layer.id)
    found: defaultdict[int, list[list[int]]] = defaultdict(list)
    for rows in children.values():
        found[len(rows)] += rows.values()
    return dict(found)
