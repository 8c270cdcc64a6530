"""Parts of one model that began as copies of one another, and are given nothing that could tell them apart."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.module_structure import structure_of

_SAME = ("weight_norm", "weight_max_abs", "weight_drift", "update_norm", "gradient_norm")

Matrices = dict[tuple[str, tuple[int, ...]], int]  # by path within the part, and shape
Pair = tuple[NDArray[np.int64], NDArray[np.int64]]


class CopiedParts:
    """Members of a list with the same matrices. Copies that see other inputs part at the first step; these do not.

    Replicas of a model see batches of their own: their gradients differ before they are averaged.
    """

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._pairs: list[Pair] = []
        self._looks: list[int] = []

    def observe(self, view: FrameView) -> tuple[int, ...]:
        """The matrices of all copies but the first of each kind, once they are known to stay equal."""
        if view.layout is not self._layout:
            self._layout = view.layout
            self._pairs = _pairs(view.layout)
            self._looks = [0] * len(self._pairs)
        if not self._pairs:
            return ()
        values = {name: view.all_layers(name) for name in _SAME}
        kept = [place for place, pair in enumerate(self._pairs) if not _differ(values, pair)]
        self._pairs = [self._pairs[place] for place in kept]
        self._looks = [self._looks[place] for place in kept]
        for place, pair in enumerate(self._pairs):
            self._looks[place] += _moved(values, pair)
        proven = [pair[1] for pair, looks in zip(self._pairs, self._looks) if looks >= limit.COPIED_PART_LOOKS]
        return tuple(sorted({int(i) for ids in proven for i in ids}))


def _differ(values: dict[str, NDArray[np.float32]], pair: Pair) -> bool:
    """Whether any number of theirs is known to be another one."""
    one, other = pair
    numbers = ((of[one], of[other]) for of in values.values())
    return any(bool(((a != b) & ~np.isnan(a) & ~np.isnan(b)).any()) for a, b in numbers)


def _moved(values: dict[str, NDArray[np.float32]], pair: Pair) -> bool:
    """Whether both are trained and known to have had the chance to part."""
    both = np.concatenate(pair)
    return bool((values["weight_drift"][both] > limit.MOVED).all() and (values["gradient_norm"][both] > 0).all())


def _pairs(layout: LayerIndex) -> list[Pair]:
    """The first part of every list, beside each of the others that has just the same matrices."""
    lists: dict[str, dict[str, Matrices]] = defaultdict(lambda: defaultdict(dict))
    for place in structure_of(layout).matrices:
        layer = layout.layers[int(place)]
        names = layer.path.split(".")
        for depth, name in enumerate(names[:-1]):
            if name.isdigit() and layer.trainable:
                inside = (".".join(names[depth + 1 :]), tuple(layer.shape))
                lists[".".join(names[:depth])][name][inside] = layer.id
    pairs: list[Pair] = []
    for parts in lists.values():
        first: dict[frozenset[tuple[str, tuple[int, ...]]], Matrices] = {}
        for part in parts.values():
            twin = first.setdefault(frozenset(part), part)
            if twin is not part:
                pairs.append((np.array([twin[key] for key in part]), np.array(list(part.values()))))
    return pairs
