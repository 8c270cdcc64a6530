"""Activation functions that have no module of their own, or share one: what they do is noted with the module they
follow, whose units these are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from undertow.probe.signals.nodes import (
    SAME_VALUES,
    Edge,
    Node,
    edges,
    first_rows,
    is_leaf,
    operation,
    saved,
    saved_tensor,
)
from undertow.probe.signals.terms import constant_factor

_BOUNDED = {"Tanh": (-0.99, 0.99), "Sigmoid": (0.01, 0.99)}
_POOLING = frozenset({"MaxPool2DWithIndices", "MaxPool3DWithIndices", "AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D"})
_BETWEEN = SAME_VALUES | _POOLING | {"Mul"}  # a module and the function behind it; a product with a constant only
_FAR = 8
_MOST_FUNCTIONS = 256
_ELEMENTS = 1 << 18
_FEWEST = 64  # elements to tell a dropout by
_SOME = 4096
_CHANNELS_FIRST_3D = (nn.Conv1d, nn.BatchNorm1d, nn.ConvTranspose1d, nn.InstanceNorm1d)


class Followed(Protocol):
    """A module that ran, and room for what the functions behind it do."""

    module: nn.Module
    calls: int
    spans: list[tuple[int, int]]
    active_units: list[NDArray[np.uint8]]
    saturated: list[float | torch.Tensor]


def unit_dimension(module: nn.Module, dimensions: int) -> int:
    """Which dimension of such an output holds the units: channels or features."""
    channels_first = dimensions >= 4 or (dimensions == 3 and isinstance(module, _CHANNELS_FIRST_3D))
    return 1 if channels_first or dimensions == 2 else dimensions - 1


def note_functions(nodes: Sequence[Node], modules: Iterable[Followed]) -> int:
    """How many functions were found; what they did is then with the modules they follow."""
    known = list(modules)
    last_of = _last_operations(known)
    own = {first for one in known if one.calls == 1 for first, last in one.spans if last == first + 1}
    gates = _factors(nodes)
    noted: set[int] = set()
    found = 0
    for node in nodes:
        name = operation(node)
        if name != "Relu" and name not in _BOUNDED:
            continue
        # A function with a module of its own is measured there; what multiplies is a gate or gated, and may be flat.
        if found >= _MOST_FUNCTIONS or node._sequence_nr() in own or (name in _BOUNDED and node in gates):
            continue
        module = _followed(node, last_of)
        values = saved_tensor(node, "result")
        if module is None or values is None or values.device.type != "cpu" or values.dim() < 2:
            continue
        found += 1
        some = first_rows(values, _ELEMENTS)
        if name == "Relu":
            if id(module) not in noted:  # of what it puts out itself no unit is ever silent
                noted.add(id(module))
                module.active_units = []
            module.active_units.append(_active(module.module, some))
        else:
            low, high = _BOUNDED[name]
            module.saturated.append(((some <= low) | (some >= high)).float().mean())
    return found


def _last_operations(modules: Iterable[Followed]) -> dict[int, Followed]:
    """The module that ends with an operation, by the number of that; of modules inside each other, the innermost.

    What a container does beside its parts (a sum of two, say) belongs to the part that ran last.
    """
    last_of: dict[int, tuple[int, Followed]] = {}
    for one in modules:
        if one.module._modules and not any(own is not None for own in one.module._parameters.values()):
            continue
        for first, behind in one.spans:
            if behind > first and (behind - 1 not in last_of or behind - first < last_of[behind - 1][0]):
                last_of[behind - 1] = (behind - first, one)
    return {number: one for number, (_, one) in last_of.items()}


def _factors(nodes: Iterable[Node]) -> set[Node]:
    """What is multiplied with something else that is learnt."""
    products = (node for node in nodes if operation(node) == "Mul")
    return {side[0] for node in products for side in _both(node)}


def _both(node: Node) -> Iterator[Edge]:
    sides = [edge for edge in edges(node) if edge is not None]
    if len(sides) == 2:
        yield from sides


def _followed(function: Node, last_of: Mapping[int, Followed]) -> Followed | None:
    """The module whose output the function is applied to; of a sum, the one that ran last."""
    node = function
    for _ in range(_FAR):
        inputs = [edge[0] for edge in edges(node) if edge is not None and not is_leaf(edge[0])]
        if not inputs or (len(inputs) > 1 and operation(node) != "Add"):
            return None
        node = max(inputs, key=lambda one: one._sequence_nr())
        module = last_of.get(node._sequence_nr())
        if module is not None:
            return module
        name = operation(node)
        if name not in _BETWEEN and not (name == "Add" and len(list(_both(node))) == 2):
            return None
    return None


def _active(module: nn.Module, values: torch.Tensor) -> NDArray[np.uint8]:
    """One flag per unit: was it ever above zero?"""
    by_unit = values.transpose(0, unit_dimension(module, values.dim())).flatten(1)
    return (by_unit > 0).any(1).numpy().astype(np.uint8)


def dropped_share(node: Node) -> float | None:
    """The rate of a dropout without a module of its own: a product with zeros and one number above one, its rest."""
    if operation(node) == "NativeDropout":
        rate = saved(node, "p")
        return float(rate) if isinstance(rate, float) and 0 < rate < 1 else None
    if operation(node) != "Mul" or len([edge for edge in edges(node) if edge is not None]) != 1:
        return None
    noise = constant_factor(node)
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
