"""Gates of a mixture of experts: which modules they are, how many experts each has, and how far the model has moved."""

from collections import defaultdict

import numpy as np

from undertow.detect.engine import FrameBatch, FrameView, LayerIndex, Limit, Tracker, having
from undertow.detect.features.matrices import matrices_of, middle
from undertow.schema import Layer

_LEAST_BY_SHAPE = 4  # experts: fewer parts have as many as something else by chance


class Routers(Tracker):
    """`experts` by gate; `drift` is the way of the median matrix that moves: experts that are never chosen do not."""

    wakes_on = having("activation")
    order = ("router-collapse", "idle-experts")
    moved = Limit(1e-5, "relative distance from the start: less is rounding")

    def __init__(self) -> None:
        self.experts: dict[int, int] = {}
        self.drift = np.nan
        self._has_gates = False

    @property
    def is_calm(self) -> bool:
        return not self._has_gates

    def follow(self, view: FrameView) -> None:
        self._measure_drift(view)
        loads, outputs, ids = view.row("router_load_max"), view.row("router_outputs"), view.ids("activation")
        if loads is not None and outputs is not None and ids is not None:
            measured = ~np.isnan(loads)
            self.experts |= dict(zip(ids[measured].tolist(), outputs[measured].astype(int).tolist(), strict=True))
        self._has_gates = bool(self.gates(view.layout))

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        for place in batch.frames_with("weight", first, last)[-1:]:
            self._measure_drift(batch.view(place))

    def gates(self, layout: LayerIndex) -> dict[int, int]:
        """Those seen to choose; where none was, as on a device that is not waited for, those that have the shape."""
        return self.experts or layout.derived(_gates_by_shape)

    def _measure_drift(self, view: FrameView) -> None:
        if view.row("weight_drift") is not None:
            drift = matrices_of(view.layout).values(view, "weight_drift")
            self.drift = middle(drift[drift > self.moved])


def experts_of(layout: LayerIndex) -> dict[str, dict[str, list[int]]]:
    """Numbered children of one module, with the parameters below each: by the path of that module."""
    children: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for layer in layout.layers.parameters:
        parts = layer.path.split(".")
        for place, part in enumerate(parts):
            if part.isdigit():
                children[".".join(parts[:place])][part].append(layer.id)
    return {path: dict(rows) for path, rows in children.items()}


def _gates_by_shape(layout: LayerIndex) -> dict[int, int]:
    """What stands beside a list of parts that are all alike, a module or the end of several, with as many outputs as
    there are parts.
    """
    found: dict[int, int] = {}
    for path, rows in experts_of(layout).items():
        shapes = {tuple(tuple(layout.layers[i].shape) for i in ids) for ids in rows.values()}
        if len(rows) < _LEAST_BY_SHAPE or len(shapes) > 1:
            continue
        around = path.rpartition(".")[0]
        last: dict[str, Layer] = {}  # matrix of each of the modules beside the list
        for layer in layout.layers.parameters:
            beside = _child_of(around, layer.group)
            if beside and beside != path and len(layer.shape) == 2:
                last[beside] = layer
        for layer in last.values():
            if layer.shape[0] == len(rows) and layer.trainable and layout.module[layer.id] >= 0:
                found[int(layout.module[layer.id])] = len(rows)
    return found


def _child_of(parent: str, path: str) -> str:
    """The module right below `parent` that a path leads through; empty where it does not."""
    above = f"{parent}." if parent else ""
    return above + path[len(above) :].partition(".")[0] if path.startswith(above) else ""
