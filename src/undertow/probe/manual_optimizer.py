"""Stands in for the optimizer where a training loop updates its weights itself."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from torch.optim.optimizer import Optimizer

from undertow.probe.watched_layers import WatchedLayers


class ManualOptimizer(Optimizer):
    """Holds layers that are updated together, not tensors: functional loops make new tensors at every step."""

    def __init__(self, layers: WatchedLayers) -> None:
        self._layers = layers
        self._ids: set[int] = set()
        self.state = defaultdict(dict)

    def shares(self, layer_ids: Iterable[int]) -> bool:
        return not self._ids.isdisjoint(layer_ids)

    def add(self, layer_ids: Iterable[int]) -> None:
        self._ids.update(layer_ids)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        references, layout = self._layers.references, self._layers.layout
        ids = layout.parameter_ids[layout.row_of_slot].tolist()
        mine = [reference() for reference, layer in zip(references, ids) if layer in self._ids]
        return [{"params": [tensor for tensor in mine if tensor is not None]}]
