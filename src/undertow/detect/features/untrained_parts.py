"""Parts of a model that rest with the random numbers they were made with: forgotten, or at rest on purpose?"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import LayerIndex, Limit
from undertow.detect.features.first_weights import FirstWeights
from undertow.schema import Layer, LayerKind

Mask = NDArray[np.bool_]


class UntrainedParts:
    """Answers about sets of layers at rest (`resting`, by layer), with lists of layers; empty: at rest on purpose."""

    most = Limit(0.5, "of as many trained matrices: where more rests, training only the rest is meant")
    backbone = Limit(3, "matrices, and normalisations, at least; and so many at rest for each that is trained")
    several = Limit(2, "layers at rest, normalisations, or matrices behind them: a single one is a method")
    same_norm = Limit(1e-4, "relative; two independent draws agree as well in one of hundreds")

    def __init__(self, first: FirstWeights) -> None:
        self._first = first

    def are_new(self, layout: LayerIndex, layers: Sequence[int]) -> bool:
        """Whether all matrices among these still held PyTorch's own random numbers when first measured."""
        matrices = [i for i in layers if len(layout.layers[i].shape) >= 2]
        return bool(matrices) and bool(self._first.is_default[matrices].all())

    def single(self, layout: LayerIndex, resting: Mask, drawn: bool = False) -> list[int]:
        """New layers amid trained ones, none of which is part of something that rests on purpose.

        With `drawn`, weights that were drawn in another way than PyTorch's count as well.
        """
        new = self._first.is_default | self._first.is_drawn if drawn else self._first.is_default
        at_rest, trained = _matrices(layout, resting)
        if len(at_rest) > self.most * len(trained):
            return []
        found = {
            layer.group for layer in at_rest
            if new[layer.id] and not self._belongs_elsewhere(layer, trained, layout, resting)
        }  # fmt: skip
        return [i for i in _all_at_rest(layout, resting) if layout.layers[i].group in found]

    def unloaded_backbone(self, layout: LayerIndex, resting: Mask) -> list[int]:
        """A deep part at rest under a small head, none of whose normalisations has ever moved from a scale of one."""
        scales = _scales(layout, resting)
        matrices = [layer.id for layer in layout.layers.parameters if len(layer.shape) >= 2]
        at_rest = int(resting[matrices].sum())
        trained = len(matrices) - at_rest
        if len(scales) < self.backbone or not trained or at_rest < self.backbone * trained:
            return []
        return _all_at_rest(layout, resting) if self._first.is_new_scale[scales].all() else []

    def many(self, layout: LayerIndex, resting: Mask) -> list[int]:
        """All that rests, where every matrix of it is new: single layers and blocks, not a part with a name.

        One linear layer on top of random features is a method; a network on top of several is none.
        """
        at_rest, trained = _matrices(layout, resting)
        if len(trained) < self.several or len(at_rest) < self.backbone:
            return []
        if not self._first.is_default[[layer.id for layer in at_rest]].all():
            return []
        one = len({_unit(layer, layout, resting) for layer in at_rest}) == 1
        if one or any(self._belongs_elsewhere(layer, trained, layout, resting) for layer in at_rest):
            return []
        return _all_at_rest(layout, resting)

    def front(self, layout: LayerIndex, resting: Mask) -> list[int]:
        """All that rests, where all of it is new and comes before what is trained."""
        at_rest, trained = _matrices(layout, resting)
        scales = _scales(layout, resting)
        made, behind = [layer.id for layer in at_rest], [layer.id for layer in trained]
        new = self._first.is_default
        if len(scales) >= self.several:
            new = new | self._first.is_drawn
        if len(made) < self.several or not behind or not new[made].all() or not self._first.is_new_scale[scales].all():
            return []
        if (
            np.isfinite(layout.module_order[made]).any()
            or max(made) > min(behind)
            or len(_models(layout, made + behind)) > 1
        ):
            return []  # it is given what others made, or is no part of what is trained: a judge, a target, a teacher
        if any(self._follows_trained(layer, trained, layout, resting) for layer in at_rest):
            return []
        return _all_at_rest(layout, resting)

    def feeds_a_network(self, layout: LayerIndex, resting: Mask) -> bool:
        """Random features that are meant to be random come without normalisations, or with one layer on top of them."""
        _, trained = _matrices(layout, resting)
        return len(_scales(layout, resting)) >= self.several and len(trained) >= self.several

    def _belongs_elsewhere(self, layer: Layer, trained: list[Layer], layout: LayerIndex, resting: Mask) -> bool:
        unit = _unit(layer, layout, resting)
        if unit != layer.group and not _is_one_of_a_series(unit, layout):
            return True  # a part with a name of its own rests as a whole: a backbone, a target, a teacher
        return self._follows_trained(layer, trained, layout, resting)

    def _follows_trained(self, layer: Layer, trained: list[Layer], layout: LayerIndex, resting: Mask) -> bool:
        mine = self._first.norm[layer.id]
        alike = [self._first.norm[other.id] for other in trained if other.shape == layer.shape]
        if any(abs(norm - mine) <= self.same_norm * mine for norm in alike):
            return True  # a copy of a trained layer, which follows it
        thin = [o for o in layout.layers.parameters if not resting[o.id] and len(o.shape) == 2]
        return _is_adapted(layer, thin)


def _matrices(layout: LayerIndex, resting: Mask) -> tuple[list[Layer], list[Layer]]:
    """Those at rest, and those that are not."""
    matrices = [layer for layer in layout.layers.parameters if len(layer.shape) >= 2]
    matrices = [layer for layer in matrices if layer.kind in (LayerKind.WEIGHT, LayerKind.RECURRENT)]
    at_rest = [layer for layer in matrices if resting[layer.id]]
    return at_rest, [layer for layer in matrices if not resting[layer.id]]


def _scales(layout: LayerIndex, resting: Mask) -> list[int]:
    scales = [layer.id for layer in layout.layers.parameters if layer.kind == LayerKind.NORM_SCALE]
    return [i for i in scales if resting[i]]


def _all_at_rest(layout: LayerIndex, resting: Mask) -> list[int]:
    return [layer.id for layer in layout.layers.parameters if resting[layer.id]]


def _unit(layer: Layer, layout: LayerIndex, resting: Mask) -> str:
    """The widest module around a layer all of whose parameters rest."""
    unit = str(layer.group)
    while unit:
        above = unit.rpartition(".")[0]
        inside = [o.id for o in layout.layers.parameters if not above or o.path.startswith(f"{above}.")]
        if not resting[inside].all():
            break
        unit = above
    return unit


def _models(layout: LayerIndex, layers: list[int]) -> set[str]:
    return {model_of(layout, i) for i in layers}


def model_of(layout: LayerIndex, layer: int) -> str:
    """Of several models each is one leading component of its paths, which no module of the table has alone."""
    head, _, rest = layout.path(layer).partition(".")
    return "" if head in layout.layers or not rest else head


def _is_one_of_a_series(unit: str, layout: LayerIndex) -> bool:
    """Is it a member of a list, or one of `layer1`, `layer2` and so on?"""
    above, _, name = unit.rpartition(".")
    if name.isdigit():
        return True
    stem = name.rstrip("0123456789")
    siblings = {
        path[len(above) + 1 if above else 0 :].partition(".")[0]
        for path in (str(layer.path) for layer in layout.layers.parameters)
        if not above or path.startswith(f"{above}.")
    }
    return stem != name and any(one != name and one.rstrip("0123456789") == stem != one for one in siblings)


def _is_adapted(layer: Layer, trained: list[Layer]) -> bool:
    """Do trained thin matrices in the same module, or in the one around both, stand in for this one's updates?"""
    above = layer.group.rpartition(".")[0]
    if any(o.group == layer.group for o in trained):
        return True
    near = [o for o in trained if above and (o.group == above or o.group.startswith(f"{above}."))]
    rows, columns = layer.shape[0], math.prod(layer.shape[1:])
    rank_in = {sum(o.shape) - columns for o in near if columns in o.shape}
    rank_out = {sum(o.shape) - rows for o in near if rows in o.shape}
    return len(near) == 2 and any(rank < min(rows, columns) for rank in rank_in & rank_out)
