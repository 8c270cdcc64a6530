"""Activation functions that have no module of their own, or share one: what they do is noted with the module they
follow, whose units these are.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from undertow.probe.forward import ModuleReading
from undertow.probe.signals.graph_values import SAME_VALUES, Value, first_rows
from undertow.probe.signals.modules import unit_dimension

_BOUNDED = {"Tanh": (-0.99, 0.99), "Sigmoid": (0.01, 0.99)}
_POOLING = frozenset({"MaxPool2DWithIndices", "MaxPool3DWithIndices", "AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D"})
_BETWEEN = SAME_VALUES | _POOLING | {"Mul"}  # a module and the function behind it; a product with a constant only
_FAR = 8
_MOST_FUNCTIONS = 256
_ELEMENTS = 1 << 18
_FEWEST = 64  # elements to tell a dropout by
_SOME = 4096


def note_functions(named: Sequence[tuple[str, Value]], modules: Sequence[ModuleReading]) -> int:
    """How many functions were found; what they did is then with the modules they follow."""
    last_of = _last_operations(modules)
    own = {first for one in modules if one.calls == 1 for first, last in one.spans if last == first + 1}
    products = (value.inputs for name, value in named if name == "Mul")
    gates = {side.node for sides in products if len(sides) == 2 for side in sides}
    noted: set[int] = set()
    found = 0
    for name, value in named:
        if name != "Relu" and name not in _BOUNDED:
            continue
        # A function with a module of its own is measured there; what multiplies is a gate or gated, and may be flat.
        if found >= _MOST_FUNCTIONS or value.node._sequence_nr() in own or (name in _BOUNDED and value.node in gates):
            continue
        module = _followed(value, last_of)
        result = value.tensor("result")
        if module is None or result is None or result.device.type != "cpu" or result.dim() < 2:
            continue
        found += 1
        some = first_rows(result, _ELEMENTS)
        if name == "Relu":
            if id(module) not in noted:  # of what it puts out itself no unit is ever silent
                noted.add(id(module))
                module.active_units = []
            by_unit = some.transpose(0, unit_dimension(module.kind, some.dim())).flatten(1)
            module.active_units.append((by_unit > 0).any(1).numpy().astype(np.uint8))
        else:
            low, high = _BOUNDED[name]
            module.saturated.append(((some <= low) | (some >= high)).float().mean())
    return found


def _last_operations(modules: Iterable[ModuleReading]) -> dict[int, ModuleReading]:
    """The module that ends with an operation, by the number of that; of modules inside each other, the innermost.

    What a container does beside its parts (a sum of two, say) belongs to the part that ran last.
    """
    last_of: dict[int, tuple[int, ModuleReading]] = {}
    for one in modules:
        module = one.module
        if module is not None and module._modules and all(own is None for own in module._parameters.values()):
            continue
        for first, behind in one.spans:
            if behind > first and (behind - 1 not in last_of or behind - first < last_of[behind - 1][0]):
                last_of[behind - 1] = (behind - first, one)
    return {number: one for number, (_, one) in last_of.items()}


def _followed(function: Value, last_of: Mapping[int, ModuleReading]) -> ModuleReading | None:
    """The module whose output the function is applied to; of a sum, the one that ran last."""
    value = function
    for _ in range(_FAR):
        inputs = [one for one in value.inputs if not one.is_leaf]
        if not inputs or (len(inputs) > 1 and value.operation != "Add"):
            return None
        value = max(inputs, key=lambda one: one.node._sequence_nr())
        module = last_of.get(value.node._sequence_nr())
        if module is not None:
            return module
        if value.operation not in _BETWEEN and not (value.operation == "Add" and len(value.inputs) == 2):
            return None
    return None


def dropped_share(name: str, value: Value) -> float | None:
    """The rate of a dropout without a module of its own: a product with zeros and one number above one, its rest."""
    if name == "NativeDropout":
        rate = value.saved("p")
        return float(rate) if isinstance(rate, float) and 0 < rate < 1 else None
    noise = value.factor if name == "Mul" and value.only else None
    if not isinstance(noise, torch.Tensor) or noise.device.type != "cpu" or not noise.is_floating_point():
        return None
    if noise.numel() < _FEWEST:
        return None
    some = noise.detach().flatten()[:_SOME].float()
    kept = some[some != 0]
    if not len(kept) or len(kept) == len(some) or not 1 < float(kept[0]) < np.inf or bool((kept != kept[0]).any()):
        return None
    rate, share = 1 - 1 / float(kept[0]), 1 - len(kept) / len(some)
    return rate if abs(rate - share) < 4 * (rate * (1 - rate) / len(some)) ** 0.5 + 1e-3 else None
