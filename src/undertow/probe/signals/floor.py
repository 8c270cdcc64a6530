"""Has a loss a floor? Where it holds a value and the exponential of that value, they must pull against each other.

A log-scale stands in a likelihood twice: as itself, and in an exponential that weighs an error. `exp(-s) * error + s`
has a least value, and `exp(s) * error - s`; with the other sign in front of `s` both parts fall together, for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from undertow.probe.signals.nodes import SAME_VALUES, Edge, Node, edges, is_leaf, only_edge, operation
from undertow.probe.signals.terms import constant_factor

_MOST_NODES = 512
_MOST_EXPONENTIALS = 256
_MOST_ELEMENTS = 1 << 16
_SUMS = SAME_VALUES | {"Add", "Mean", "Sum", "Stack", "Cat"}


def has_no_floor(root: torch.Tensor, nodes: Sequence[Node]) -> bool | None:
    """None where no value stands beside its exponential."""
    exponentials = [node for node in nodes if operation(node) == "Exp"][:_MOST_EXPONENTIALS]
    if not exponentials or root.grad_fn is None:
        return None
    signs = _linear(root)
    answers: list[bool] = []
    for node in exponentials:
        value, slope = _exponent(node)
        alone = signs.get(value) if value is not None else None
        if alone and slope:
            weight = signs.get((node, 0), 1.0)  # an exponential inside of something weighs an error
            answers.append(alone * slope * weight > 0)
    return any(answers) if answers else None


def _linear(root: torch.Tensor) -> dict[Edge, float]:
    """What the loss is a weighted sum of, and the sign of the weight; 0 where both occur."""
    signs: dict[Edge, float] = {}
    waiting: list[tuple[Edge, float]] = [((root.grad_fn, int(root.output_nr)), 1.0)]
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        edge, sign = waiting.pop()
        node = edge[0]
        name = "" if is_leaf(node) else operation(node)
        inputs = edges(node)
        if name in _SUMS:
            waiting += [(one, sign) for one in inputs if one is not None]
        elif name == "Sub":
            waiting += [(one, -sign if place else sign) for place, one in enumerate(inputs) if one is not None]
        elif name in ("Neg", "Rsub"):
            waiting += [(one, -sign) for one in inputs if one is not None]
        elif only_edge(node) is not None and (name == "Mul" or (name == "Div" and inputs[0] is not None)):
            factor = _sign(constant_factor(node))
            waiting += [(one, sign * factor) for one in inputs if one is not None and factor]
        else:
            signs[edge] = sign if signs.get(edge, sign) == sign else 0.0
    return signs


def _exponent(node: Node) -> tuple[Edge | None, float]:
    """What an exponential was taken of, behind constants, and the sign in front of it."""
    edge, sign = only_edge(node), 1.0
    for _ in range(16):
        if edge is None or is_leaf(edge[0]):
            break
        name = operation(edge[0])
        if name == "Neg":
            sign = -sign
        elif name in ("Mul", "Div"):
            sign *= _sign(constant_factor(edge[0]))
        elif name not in SAME_VALUES:
            break
        inside = only_edge(edge[0])
        if inside is None:
            break
        edge = inside
    return edge, sign


def _sign(factor: torch.Tensor | float | None) -> float:
    """0 when it is unknown or not the same everywhere."""
    if factor is None or (isinstance(factor, torch.Tensor) and factor.numel() > _MOST_ELEMENTS):
        return 0.0
    values = torch.as_tensor(factor).detach()
    if values.device.type != "cpu" or values.is_complex() or not values.numel():
        return 0.0
    if bool((values >= 0).all()):
        return 1.0 if bool((values > 0).any()) else 0.0
    return -1.0 if bool((values <= 0).all()) else 0.0
