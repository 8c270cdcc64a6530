"""Frozen layers that still hold the random numbers they were made with, in a model that otherwise trains."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.engine.consecutive import grown
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.first_weights import FirstWeights
from undertow.detect.features.progress import has_learnt
from undertow.schema.layers import Layer, LayerKind
from undertow.schema.quantities import GradientState


class UntrainedFreeze:
    """Judges once for every set of frozen layers, after a few measured steps; `members` is the answer."""

    def __init__(self) -> None:
        self.members: NDArray[np.bool_] = np.zeros(0, bool)
        self.is_waiting = False
        self.since = 0
        self._any_frozen = False
        self._frozen: NDArray[np.bool_] = np.zeros(0, bool)
        self._known: NDArray[np.bool_] = np.zeros(0, bool)  # whether it is frozen
        self._first = FirstWeights()
        self._measured = 0  # steps since the set of frozen layers became what it is
        self._wanted = 0  # steps it must have been so, until there is more to say
        self._moved = False
        self._is_meant = False

    def grow(self, count: int) -> None:
        self.members = grown(self.members, count, False)
        self._frozen = grown(self._frozen, count, False)
        self._known = grown(self._known, count, False)
        self._first.grow(count)

    def observe(self, view: FrameView) -> None:
        self.learn(view)
        states, ids = view.row("gradient_state"), view.ids("gradient")
        if states is None or ids is None:
            return
        if not self._any_frozen and not (states == GradientState.FROZEN).any():
            self._known[ids] = True
            return
        before = self._frozen[ids]
        now = np.where(np.isnan(states), before, states == GradientState.FROZEN)
        if not np.array_equal(now, before):
            # Who releases layers has a plan, and so has who freezes them while training.
            self._is_meant |= bool(((before != now) & self._known[ids]).any())
            self._frozen[ids] = now
            self._any_frozen = bool(self._frozen.any())
            self._measured, self.since, self._wanted = 0, view.step, 0
            self.is_waiting = bool(now.any()) and not self._is_meant
            self.members = np.zeros(len(self.members), bool)
        self._known[ids] = True
        if not self.is_waiting:
            return
        self._measured += 1
        long = self._measured >= 3 and view.step - self.since >= 4 * limit.FROZEN_PATIENCE
        if self._moved and (self._measured >= limit.FROZEN_PATIENCE or long):
            self._judge(view)

    def _judge(self, view: FrameView) -> None:
        layout, lasted = view.layout, view.step - self.since
        if lasted < self._wanted:
            return  # nothing has changed
        self.members = self.forgotten(layout, self._frozen)
        tables = [layer.id for layer in layout.layers.parameters if layer.kind is LayerKind.EMBEDDING]
        tables = [table for table in tables if self._frozen[table] and self._first.is_drawn[table]]
        many: list[int] = []
        if not self.members.any():
            many = self.idle_adapters(layout) or self._most_of_it(layout) or self._unloaded_part(layout)
        idle = [] if many or self.members.any() else self._new_front(layout)
        alone = self.members.any()
        if alone and lasted < limit.FROZEN_PATIENCE_ALONE:
            self.members = np.zeros(len(self.members), bool)
        waits = (
            ((alone,) if alone else (), limit.FROZEN_PATIENCE_ALONE),
            (idle, limit.FROZEN_PATIENCE_IN_VAIN),
            (many, limit.FROZEN_PATIENCE_WITH_MANY),
            (tables, limit.FROZEN_PATIENCE_WITH_TABLES),
        )
        self._wanted = next((steps for which, steps in waits if which and lasted < steps), 0)
        self.is_waiting = self._wanted > 0
        # A table of vectors that were made elsewhere can look the same; with it the model would learn.
        meant = (
            lasted < limit.FROZEN_PATIENCE_WITH_TABLES
            or has_learnt(view.loss)
            or self._belongs_to_frozen(layout, tables)
        )
        if tables and not meant:
            self.members[tables] = True
        if many and lasted >= limit.FROZEN_PATIENCE_WITH_MANY:
            self.members[many] = True
        # Random features on purpose are made so that the rest can learn from them.
        if idle and lasted >= limit.FROZEN_PATIENCE_IN_VAIN and view.loss is not None and not has_learnt(view.loss):
            self.members[idle] = True

    def learn(self, view: FrameView) -> None:
        """How the weights look when first measured, and whether anything moves."""
        if not self._moved:
            moves = view.row("update_norm")
            self._moved = moves is not None and bool((moves > 0).any())
        self._first.take(view)

    @property
    def has_learnt(self) -> bool:
        """Nothing is left to `learn`."""
        return self._moved and self._first.has_seen_all

    def are_new(self, layout: LayerIndex, layers: Sequence[int]) -> bool:
        """Whether all matrices among these still held PyTorch's own random numbers when first measured."""
        matrices = [i for i in layers if len(layout.layers[i].shape) >= 2]
        return bool(matrices) and bool(self._first.is_default[matrices].all())

    def _belongs_to_frozen(self, layout: LayerIndex, tables: list[int]) -> bool:
        """Whether other matrices are frozen, too: then a whole part is, on purpose."""
        matrices = [layer.id for layer in layout.layers.parameters if len(layer.shape) >= 2 and layer.id not in tables]
        return bool(self._frozen[matrices].any())

    def forgotten(self, layout: LayerIndex, resting: NDArray[np.bool_], drawn: bool = False) -> NDArray[np.bool_]:
        """Default weights, at rest alone amid trained ones, and no part of an arrangement that rests on purpose.

        With `drawn`, weights that were drawn in another way count as well.
        """
        new = self._first.is_default | self._first.is_drawn if drawn else self._first.is_default
        matrices = [layer for layer in layout.layers.parameters if len(layer.shape) >= 2]
        matrices = [layer for layer in matrices if layer.kind in (LayerKind.WEIGHT, LayerKind.RECURRENT)]
        trained = [layer for layer in matrices if not resting[layer.id]]
        frozen = [layer for layer in matrices if resting[layer.id]]
        out = np.zeros(len(self.members), bool)
        if self.is_new_backbone(layout, resting):
            out[[layer.id for layer in layout.layers.parameters if resting[layer.id]]] = True
            return out
        if not frozen or len(frozen) > limit.FROZEN_MOST * len(trained):
            return out
        for layer in frozen:
            if new[layer.id] and not self._belongs_elsewhere(layer, trained, layout, resting):
                mine = [other.id for other in layout.layers.parameters if other.group == layer.group]
                out[[i for i in mine if resting[i]]] = True
        return out

    def _most_of_it(self, layout: LayerIndex) -> list[int]:
        """All that is frozen, where every matrix of it is new: single layers and blocks, not a part with a name.

        One linear layer on top of random features is a method; a network on top of several is none.
        """
        matrices = [layer for layer in layout.layers.parameters if len(layer.shape) >= 2]
        matrices = [layer for layer in matrices if layer.kind in (LayerKind.WEIGHT, LayerKind.RECURRENT)]
        trained = [layer for layer in matrices if not self._frozen[layer.id]]
        frozen = [layer for layer in matrices if self._frozen[layer.id]]
        if (
            len(trained) < 2
            or len(frozen) < limit.FROZEN_BACKBONE
            or not self._first.is_default[[layer.id for layer in frozen]].all()
        ):
            return []
        one = len({_unit(layer, layout, self._frozen) for layer in frozen}) == 1
        if one or any(self._belongs_elsewhere(layer, trained, layout, self._frozen) for layer in frozen):
            return []
        return [layer.id for layer in layout.layers.parameters if self._frozen[layer.id]]

    def _unloaded_part(self, layout: LayerIndex) -> list[int]:
        """All that is frozen, where all of it is new, normalisations among it, and feeds a network that is trained.

        Random features that are meant to be random come without normalisations, or with one layer on top of them.
        """
        scales = self._frozen_scales(layout)
        _, trained = self._matrices(layout)
        if len(scales) < limit.FROZEN_NORMALISED or len(trained) < limit.FROZEN_NORMALISED:
            return []
        new = self._first.is_default | self._first.is_drawn
        return self._at_the_front(layout, new) if self._first.is_new_scale[scales].all() else []

    def _new_front(self, layout: LayerIndex) -> list[int]:
        """The same without normalisations, of several layers: a fault only where nothing is learnt from it."""
        frozen, _ = self._matrices(layout)
        if len(frozen) < limit.FROZEN_NORMALISED or not self._first.is_new_scale[self._frozen_scales(layout)].all():
            return []
        return self._at_the_front(layout, self._first.is_default)

    def _frozen_scales(self, layout: LayerIndex) -> list[int]:
        scales = [one.id for one in layout.layers.parameters if one.kind == LayerKind.NORM_SCALE]
        return [one for one in scales if self._frozen[one]]

    def _at_the_front(self, layout: LayerIndex, new: NDArray[np.bool_]) -> list[int]:
        """All that is frozen, where every matrix of it is new and comes before those that are trained."""
        frozen, trained = self._matrices(layout)
        made, behind = [layer.id for layer in frozen], [layer.id for layer in trained]
        if not made or not behind or not new[made].all():
            return []
        if (
            np.isfinite(layout.module_order[made]).any()
            or max(made) > min(behind)
            or len(_models(layout, made + behind)) > 1
        ):
            return []  # it is given what others made, or is no part of what is trained: a judge, a target, a teacher
        if any(self._follows_trained(layer, trained, layout, self._frozen) for layer in frozen):
            return []
        return [layer.id for layer in layout.layers.parameters if self._frozen[layer.id]]

    def _matrices(self, layout: LayerIndex) -> tuple[list[Layer], list[Layer]]:
        """Those that are frozen, and those that are not."""
        matrices = [layer for layer in layout.layers.parameters if len(layer.shape) >= 2]
        matrices = [layer for layer in matrices if layer.kind in (LayerKind.WEIGHT, LayerKind.RECURRENT)]
        trained = [layer for layer in matrices if not self._frozen[layer.id]]
        return [layer for layer in matrices if self._frozen[layer.id]], trained

    def idle_adapters(self, layout: LayerIndex) -> list[int]:
        """Frozen pairs of thin matrices beside a frozen one, of which one is zero: they can never do anything."""
        frozen = [layer for layer in layout.layers.parameters if self._frozen[layer.id] and len(layer.shape) == 2]
        if not any(self._first.is_zero[layer.id] for layer in frozen):
            return []
        pairs = (_thin_pair(layer, frozen) for layer in frozen)
        return sorted({one.id for pair in pairs if any(self._first.is_zero[o.id] for o in pair) for one in pair})

    def is_new_backbone(self, layout: LayerIndex, resting: NDArray[np.bool_]) -> bool:
        """A deep part at rest under a small head, none of whose normalisations has ever moved from a scale of one."""
        parameters = layout.layers.parameters
        scales = [layer.id for layer in parameters if layer.kind == LayerKind.NORM_SCALE and resting[layer.id]]
        matrices = [layer.id for layer in parameters if len(layer.shape) >= 2]
        frozen = int(resting[matrices].sum())
        trained = len(matrices) - frozen
        deep = (
            len(scales) >= limit.FROZEN_BACKBONE and frozen >= limit.FROZEN_BACKBONE * max(trained, 1) and trained > 0
        )
        return deep and bool(self._first.is_new_scale[scales].all())

    def _belongs_elsewhere(
        self, layer: Layer, trained: list[Layer], layout: LayerIndex, resting: NDArray[np.bool_]
    ) -> bool:
        unit = _unit(layer, layout, resting)
        if unit != layer.group and not _is_one_of_a_series(unit, layout):
            return True  # a part with a name of its own was frozen as a whole: a backbone, a target, a teacher
        return self._follows_trained(layer, trained, layout, resting)

    def _follows_trained(
        self, layer: Layer, trained: list[Layer], layout: LayerIndex, resting: NDArray[np.bool_]
    ) -> bool:
        mine = self._first.norm[layer.id]
        alike = [self._first.norm[other.id] for other in trained if other.shape == layer.shape]
        if any(abs(norm - mine) <= limit.SAME_NORM * mine for norm in alike):
            return True  # a copy of a trained layer, which follows it
        thin = [o for o in layout.layers.parameters if not resting[o.id] and len(o.shape) == 2]
        return _is_adapted(layer, thin)


def _unit(layer: Layer, layout: LayerIndex, resting: NDArray[np.bool_]) -> str:
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
    """Of several models each is one leading component of its paths, which no module of the table has alone."""
    heads = {layout.path(i).partition(".")[0] for i in layers}
    return {"" if head in layout.layers else head for head in heads}


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
    if not above:
        return False
    near = [o for o in trained if o.group == above or o.group.startswith(f"{above}.")]
    return _are_factors(near, layer)


def _thin_pair(layer: Layer, others: list[Layer]) -> list[Layer]:
    """The two factors of a correction to a matrix, in its module or in the one around it; none when there are not."""
    above = layer.group.rpartition(".")[0]
    others = [o for o in others if o.id != layer.id]
    inside = [o for o in others if above and o.group.startswith(f"{above}.")]
    for near in ([o for o in others if o.group == layer.group], [o for o in others if o.group == above], inside):
        if _are_factors(near, layer):
            return near
    return []


def _are_factors(near: list[Layer], layer: Layer) -> bool:
    rows, columns = layer.shape[0], math.prod(layer.shape[1:])
    rank_in = {sum(o.shape) - columns for o in near if columns in o.shape}
    rank_out = {sum(o.shape) - rows for o in near if rows in o.shape}
    return len(near) == 2 and any(rank < min(rows, columns) for rank in rank_in & rank_out)
