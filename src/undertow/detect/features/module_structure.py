"""What the modules of a run are to each other: which do the work, who comes before whom, which normalise."""

from math import prod

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import LayerIndex
from undertow.schema import Layer, LayerKind

_NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm", "LocalResponseNorm")
_MATRICES = (LayerKind.WEIGHT, LayerKind.RECURRENT)
NONE = -1


class ModuleStructure:
    """Facts of modules by layer id.

    A *worker* is a module without parts, or one that owns parameters itself; containers are not, their output is
    that of a part.
    """

    def __init__(self, layout: LayerIndex) -> None:
        self.layout = layout
        modules = layout.layers.modules
        above = {path for layer in modules for path in _ancestors(layer.path)}
        owners = {layer.group for layer in layout.layers.parameters}
        workers = [layer for layer in modules if layer.path not in above or layer.path in owners]
        executed = [layer for layer in workers if layer.order is not None]
        # In execution order; a part comes before the module around it, where both ran as one.
        self.sequence: list[int] = [
            layer.id
            for layer in sorted(executed, key=lambda layer: (layer.order or 0, -layer.path.count("."), layer.id))
        ]
        self._owns: NDArray[np.bool_] = np.zeros(layout.count, bool)
        self._owns[[layer.id for layer in workers if layer.path in owners]] = True
        self._place = {layer_id: place for place, layer_id in enumerate(self.sequence)}
        self.is_worker: NDArray[np.bool_] = np.zeros(layout.count, bool)
        self.is_worker[[layer.id for layer in workers]] = True
        self.is_norm: NDArray[np.bool_] = np.zeros(layout.count, bool)
        self.is_norm[[layer.id for layer in workers if is_normalisation(layer.module_type)]] = True
        # The matrix a module multiplies by (the first one it owns), and how many numbers each output is a sum of.
        self.matrix: NDArray[np.int64] = np.full(layout.count, NONE, np.int64)
        self.fan_in: NDArray[np.float64] = np.full(layout.count, np.nan)
        for layer in layout.layers.parameters:
            if layer.kind in _MATRICES and len(layer.shape) >= 2:
                self.fan_in[layer.id] = fan_in(layer)
                owner = int(layout.module[layer.id])
                if owner >= 0 and self.matrix[owner] == NONE:
                    self.matrix[owner] = layer.id
        self.matrices: NDArray[np.int64] = np.flatnonzero(~np.isnan(self.fan_in))

    def behind(self, module: int) -> int:
        """The worker that ran right after this one."""
        place = self._place.get(module, len(self.sequence)) + 1
        return self.sequence[place] if place < len(self.sequence) else NONE

    def before(self, module: int) -> int:
        """The worker that ran right before this one."""
        place = self._place.get(module, 0) - 1
        return self.sequence[place] if place >= 0 else NONE

    def feeder(self, module: int) -> int:
        """The nearest worker at or before this one that owns a matrix: whose sums this one passes on."""
        for place in range(self._place.get(module, NONE), -1, -1):
            if self.matrix[self.sequence[place]] != NONE:
                return self.sequence[place]
        return NONE

    def owns(self, module: int) -> bool:
        """Has it parameters of its own? A function behind such a module, without a module of its own, is part of it."""
        return bool(self._owns[module])

    def source(self, module: int) -> int:
        """The nearest worker before this one that owns parameters, a normalisation included: what sets its scale."""
        for place in range(self._place.get(module, 0) - 1, -1, -1):
            if self._owns[self.sequence[place]]:
                return self.sequence[place]
        return NONE

    def is_normalised(self, module: int) -> bool:
        """Does a normalisation follow at once?"""
        behind = self.behind(module)
        return behind != NONE and bool(self.is_norm[behind])

    def is_hidden(self, module: int) -> bool:
        """Does a module with a matrix come behind this one in the same model? Else its output is the model's own."""
        place, model = self._place.get(module), self._model_of(module)
        return place is not None and any(
            self.matrix[i] != NONE and self._model_of(i) == model for i in self.sequence[place + 1 :]
        )

    def _model_of(self, module: int) -> str:
        """Of several models each is one leading component of its paths, which no module of the table has alone."""
        head = self.layout.path(module).partition(".")[0]
        return "" if head in self.layout.layers else head


def is_normalisation(module_type: str) -> bool:
    return any(name in module_type for name in _NORMS)


def is_batch_normalisation(module_type: str) -> bool:
    return "BatchNorm" in module_type


def fan_in(layer: Layer) -> int:
    """How many numbers each output is a weighted sum of."""
    if layer.module_type.startswith("ConvTranspose"):
        return prod((layer.shape[0], *layer.shape[2:]))
    return prod(layer.shape[1:])


def _ancestors(path: str) -> list[str]:
    parts = path.split(".")
    return [""] + [".".join(parts[:count]) for count in range(1, len(parts))]


def is_mostly_frozen(layout: LayerIndex) -> bool:
    """More than half of the model's parameters are: how much can be learnt at all is then a question of the others."""
    return layout.derived(_share_frozen) > 0.5


def _share_frozen(layout: LayerIndex) -> float:
    sizes = np.array([layer.parameter_count for layer in layout.layers.parameters], np.float64)
    frozen = np.array([not layer.trainable for layer in layout.layers.parameters], bool)
    return float(sizes[frozen].sum() / sizes.sum()) if sizes.sum() > 0 else 0.0


def structure_of(layout: LayerIndex) -> ModuleStructure:
    """The same one for all rules that ask about the same layout."""
    return layout.derived(ModuleStructure)
