"""The facts of all layers as arrays by layer id, computed once per layer table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from undertow.schema import LayerGraph, LayerKind, LayerTable

_BIAS_LIKE = (LayerKind.BIAS, LayerKind.NORM_SHIFT)
# Half a unit in the last place, relative to the value: smaller updates round away.
_ROUNDING = {"float64": 2.0**-53, "bfloat16": 2.0**-9, "float16": 2.0**-12, "half": 2.0**-12}
# Modules that use the parameters of their children without calling them.
_USES_CHILDREN_UNCALLED = ("MultiheadAttention",)

_Derived = TypeVar("_Derived")


class LayerIndex:
    """Layer facts for vectorised rules."""

    def __init__(self, layers: LayerTable | None = None, graph: LayerGraph | None = None) -> None:
        self.layers = layers or LayerTable()
        self.graph = graph or LayerGraph()
        count = len(self.layers)
        self.count = count
        self.order = np.full(count, np.inf)
        self.is_bias = np.zeros(count, bool)
        self.is_trainable = np.ones(count, bool)
        self.rounding = np.full(count, 2.0**-24)
        # The module layer whose call uses each parameter, nearly always its owner; -1 where the table has none.
        self.module = np.full(count, -1, np.int64)
        for layer in self.layers:
            self.is_bias[layer.id] = layer.kind in _BIAS_LIKE
            self.is_trainable[layer.id] = layer.trainable
            self.rounding[layer.id] = _ROUNDING.get(layer.dtype.removeprefix("torch."), 2.0**-24)
            if layer.order is not None:
                self.order[layer.id] = layer.order
            owner = self.layers.get(layer.group)
            if owner is not None and owner.is_module:
                above = self.layers.get(layer.group.rpartition(".")[0])
                uncalled = above is not None and above.module_type in _USES_CHILDREN_UNCALLED
                self.module[layer.id] = above.id if above is not None and uncalled else owner.id
        # Parameters by the order of their module, so that they compare with modules that own none.
        owned = self.module >= 0
        self.module_order = self.order.copy()
        if np.isfinite(self.order[self.module[owned]]).any():  # no module of a compiled model is seen to run
            by_module = self.order[self.module[owned]]
            # Of a training that begins later, the graph of a loss may be known before a module is seen to run.
            self.module_order[owned] = np.where(np.isfinite(by_module), by_module, self.order[owned])
        self.is_low_precision = self.rounding > 2.0**-24
        self._derived: dict[Callable[[LayerIndex], Any], Any] = {}

    def derived(self, kind: Callable[[LayerIndex], _Derived]) -> _Derived:
        """What somebody makes of a layout; the same one for all who ask."""
        known: _Derived | None = self._derived.get(kind)
        if known is None:
            known = self._derived[kind] = kind(self)
        return known

    def path(self, layer_id: int) -> str:
        return self.layers[int(layer_id)].path

    def in_order(self, ids: Iterable[int] | NDArray[np.integer]) -> list[int]:
        """Ids in execution order; those never seen executing follow by id."""
        return sorted((int(i) for i in ids), key=lambda i: (self.order[i], i))

    def closest_to_the_loss(self, ids: Iterable[int] | NDArray[np.integer]) -> list[int]:
        """Of these parameters, those of modules that feed no other module of the set.

        Backward passes run from the loss to the input, so this is where something that spreads upstream
        began. Without a graph it is the last module in execution order.
        """
        members = self.in_order(ids)
        groups = {self.layers[i].group for i in members}
        sinks = groups - self._upstream_of(groups)
        if not sinks or len(sinks) == len(groups) > 1:
            sinks = {self.layers[members[-1]].group}
        return [i for i in members if self.layers[i].group in sinks]

    @property
    def paths_in_graph(self) -> set[str]:
        """Modules of which it is known where their data come from and where they go."""
        return {node.path for node in self.graph.nodes if not node.is_merge}

    def feeds(self, sources: set[str], targets: set[str]) -> bool:
        """Whether data flows from one of these modules to one of those."""
        following: dict[int, list[int]] = {}
        for source, target in self.graph.edges:
            following.setdefault(source, []).append(target)
        path_of = {node.id: node.path for node in self.graph.nodes if not node.is_merge}
        waiting = [node for node, path in path_of.items() if path in sources]
        seen = set(waiting)
        while waiting:
            for node in following.get(waiting.pop(), ()):
                if path_of.get(node) in targets:
                    return True
                if node not in seen:
                    seen.add(node)
                    waiting.append(node)
        return False

    def _upstream_of(self, groups: set[str]) -> set[str]:
        """Members of `groups` from which another member is reached going forward."""
        following: dict[int, list[int]] = {}
        for source, target in self.graph.edges:
            following.setdefault(source, []).append(target)
        path_of = {node.id: node.path for node in self.graph.nodes if not node.is_merge}
        upstream: set[str] = set()
        for start, path in path_of.items():
            if path not in groups or path in upstream:
                continue
            seen, waiting = {start}, list(following.get(start, ()))
            while waiting:
                node = waiting.pop()
                if node in seen:
                    continue
                seen.add(node)
                if path_of.get(node, path) != path and path_of[node] in groups:
                    upstream.add(path)
                    break
                waiting.extend(following.get(node, ()))
        return upstream
