"""Models of one process that are meant to be one: they have the same layers, and get the same gradients."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.layout import Layout
from undertow.detect.rule import grown
from undertow.detect.view import View
from undertow.schema.layers import LayerKind

_GRADIENT = ("stepped_gradient_norm", "stepped_gradient_max_abs")
_WEIGHT = ("weight_norm", "weight_mean", "weight_max_abs")

Ids = NDArray[np.int64]
_NONE: Ids = np.zeros(0, np.int64)
Part = tuple[str, tuple[int, ...]]  # a path within its model, and a shape


class Twins:
    """Pairs of parameters, and for each what was measured last. Frames of one step may cover different models."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._one: Ids = np.zeros(0, np.int64)
        self._other: Ids = np.zeros(0, np.int64)
        self._latest: dict[str, NDArray[np.float32]] = {}
        self._step: dict[str, NDArray[np.int64]] = {}
        self._proven = 0
        self._judged = -1

    def grow(self, count: int) -> None:
        for name in (*_GRADIENT, *_WEIGHT):
            self._latest[name] = grown(self._latest.get(name, np.zeros(0, np.float32)), count, np.nan)
        for stream in ("gradient", "weight"):
            self._step[stream] = grown(self._step.get(stream, np.zeros(0, np.int64)), count, -1)

    def exist_in(self, layout: Layout) -> bool:
        if layout is not self._layout:
            self._layout = layout
            self._one, self._other = _pairs(layout)
        return bool(len(self._one))

    def normalisations(self, layout: Layout) -> tuple[Ids, Ids]:
        """Pairs of modules, once the models have proven to be replicas."""
        if self._proven < limit.TWINS_PROVEN_STEPS:
            return _NONE, _NONE
        scales = {layer.id for layer in layout.layers.parameters if layer.kind is LayerKind.NORM_SCALE}
        chosen = [int(i) in scales for i in self._one]
        one, other = layout.module[self._one[chosen]], layout.module[self._other[chosen]]
        both = (one >= 0) & (other >= 0)
        return one[both], other[both]

    def observe(self, view: View) -> tuple[Ids, Ids, NDArray[np.float64]] | None:
        """Both members of each pair that is not one any more, and how far apart they are at least; None when this
        frame does not tell."""
        if not self.exist_in(view.layout):
            return None
        self._take(view, "gradient", _GRADIENT)
        self._take(view, "weight", _WEIGHT)
        both = {stream: self._both(stream, view.step) for stream in ("gradient", "weight")}
        if self._judged == view.step or not (both["gradient"].all() and both["weight"].all()):
            return None
        self._judged = view.step
        alike = np.logical_and.reduce([self._values(name)[0] == self._values(name)[1] for name in _GRADIENT])
        alike &= self._values("stepped_gradient_norm")[0] > 0
        if 2 * int(alike.sum()) < len(alike):
            return None
        self._proven += 1
        if self._proven < limit.TWINS_PROVEN_STEPS:
            return None
        apart = np.zeros(len(alike))
        length = np.maximum(self._values("weight_max_abs")[0].astype(np.float64), 1e-30)
        for name in _WEIGHT:
            first, second = self._values(name)
            scale = first.astype(np.float64) if name == "weight_norm" else length
            apart = np.fmax(apart, np.abs(first.astype(np.float64) - second) / np.maximum(scale, 1e-30))
        return self._one, self._other, apart

    def _take(self, view: View, stream: str, names: tuple[str, ...]) -> None:
        ids = view.ids(stream)
        if ids is None:
            return
        for name in names:
            row = view.row(name)
            if row is not None:
                measured = ~np.isnan(row)
                self._latest[name][ids[measured]] = row[measured]
                self._step[stream][ids[measured]] = view.step

    def _both(self, stream: str, step: int) -> NDArray[np.bool_]:
        return (self._step[stream][self._one] == step) & (self._step[stream][self._other] == step)

    def _values(self, name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self._latest[name][self._one], self._latest[name][self._other]


def _pairs(layout: Layout) -> tuple[Ids, Ids]:
    """Parameters of the first model beside those of every other one that has just the same.

    A model's name is the first part of a path; the first model of a process may have none.
    """
    models: dict[str, dict[Part, int]] = defaultdict(dict)
    nameless: dict[Part, int] = {}
    for layer in layout.layers.parameters:
        model, _, rest = layer.path.partition(".")
        nameless[layer.path, tuple(layer.shape)] = layer.id
        if rest:
            models[model][rest, tuple(layer.shape)] = layer.id
    first: dict[frozenset[Part], dict[Part, int]] = {}
    one: list[int] = []
    other: list[int] = []
    for parts in models.values():
        if len(parts) < limit.TWINS_LEAST_PAIRS:
            continue
        twin = nameless if parts.keys() <= nameless.keys() else first.setdefault(frozenset(parts), parts)
        if twin is not parts:
            one += [twin[part] for part in parts]
            other += parts.values()
    return np.array(one, np.int64), np.array(other, np.int64)
