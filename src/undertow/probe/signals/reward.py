"""Does a loss reward what it should hold down? The size of weights, or the distance of a density from its targets; or
does it hold down what it should reward, the overlap with a mask?

From the root of the loss, signs are followed through sums, constants and functions that grow with their argument
without a bound. What is reached with a minus sign makes the loss smaller the larger it is, for ever: squares of
weights (a penalty that was subtracted), or of the logarithm of a softmax's normaliser, and squared errors inside of a
density (a log-likelihood that was meant to be negated). Squared errors by themselves are recognised as loss functions
elsewhere.
"""

from dataclasses import dataclass, replace

import torch

from undertow.probe.signals.nodes import SAME_VALUES, Edge, Node, edges, is_leaf, only_edge, operation, producer, saved
from undertow.probe.signals.overlap_loss import is_overlap
from undertow.probe.signals.terms import constant_factor
from undertow.schema import Floor

_MOST_NODES = 512
_HELD = -1.0
_SUMS = SAME_VALUES | {"Add", "Mean", "Sum", "Stack", "Cat", "Gather", "Index", "Select"}
_GROWING = frozenset({"Logsumexp", "Log", "Sqrt"})
_SIZES = frozenset({"Pow", "Abs", "Mul", "LinalgVectorNorm", "Norm"})
_POSITIVE = frozenset({"Exp", "Softplus", "Sigmoid", "Softmax", "Abs", "Sqrt", "Relu"})
_LOOKED_UP = SAME_VALUES | {"Embedding", "Select", "Index", "IndexSelect"}


@dataclass(frozen=True, slots=True)
class _Way:
    """How the loss depends on what is reached."""

    sign: float = 1.0
    is_density: bool = False  # a division by something positive, or a sum of exponentials, lies behind
    is_weighted: bool = False  # row by row: advantages, which may all be negative


def rewards(root: torch.Tensor) -> float | None:
    """Which of these a loss does; None for none."""
    if root.grad_fn is None:
        return None
    waiting: list[tuple[Edge, _Way]] = [((root.grad_fn, int(root.output_nr)), _Way())]
    found: set[float] = set()
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        edge, way = waiting.pop()
        if is_leaf(edge[0]):
            continue
        if operation(edge[0]) in _SIZES:
            found.add(_sized(edge[0], way))
        elif operation(edge[0]) == "Div" and way.sign > 0 and not way.is_weighted and is_overlap(edge[0]):
            found.add(Floor.PUNISHES_OVERLAP)
        waiting += _beyond(edge[0], way)
    if _HELD in found:  # where errors stand in the loss with both signs, as in a contrast, they hold each other
        found.discard(Floor.REWARDS_ERRORS)
    return max(found - {_HELD, Floor.NONE}, default=None)


def _sized(node: Node, way: _Way) -> float:
    """Whether this is the size of an error, or of weights, and which reward it then is."""
    made_by = producer(_measured(node), _LOOKED_UP)
    if made_by is None:
        return Floor.NONE
    if is_leaf(made_by[0]):
        return Floor.REWARDS_WEIGHTS if way.sign < 0 else Floor.NONE
    if operation(made_by[0]) == "Logsumexp":
        return Floor.REWARDS_NORMALISER if way.sign < 0 and not way.is_weighted else Floor.NONE
    if operation(made_by[0]) != "Sub" or only_edge(made_by[0]) is None:
        return Floor.NONE
    if way.sign > 0:
        return _HELD
    return Floor.REWARDS_ERRORS if way.is_density and not way.is_weighted else Floor.NONE


def _measured(node: Node) -> Edge | None:
    """What this is the size of: a square, an absolute value, a norm."""
    name = operation(node)
    if name == "Mul":
        sides = [one for one in edges(node) if one is not None]
        return sides[0] if len(sides) == 2 and sides[0] == sides[1] else None
    if name == "Pow":
        power = saved(node, "exponent")
        if not isinstance(power, (int, float)) or power <= 0 or power % 2:
            return None
    inside = only_edge(node)
    if name == "Pow" and inside is not None and not is_leaf(inside[0]) and operation(inside[0]) == "Div":
        numerator = edges(inside[0])[0]  # an error over its deviation
        return numerator if numerator is not None else inside
    return inside


def _beyond(node: Node, way: _Way) -> list[tuple[Edge, _Way]]:
    name, inputs = operation(node), edges(node)
    present = [one for one in inputs if one is not None]
    if name in _SUMS:
        return [(one, way) for one in present]
    if name == "Sub":
        return [(one, _turned(way) if place else way) for place, one in enumerate(inputs) if one is not None]
    if name in ("Neg", "Rsub"):
        return [(one, _turned(way)) for one in present]
    if name in _GROWING:
        return [(one, replace(way, is_density=True)) for one in present]
    if name == "Pow" and way.sign < 0 and _is_of_quotient(node):
        return []
    if name == "Div" and len(present) == 2 and inputs[0] is not None and _is_positive(inputs[1]):
        return [(inputs[0], replace(way, is_density=True))]
    if name == "Div" and inputs[0] is not None and len(present) == 1:
        return _scaled(node, present[0], way)
    if name == "Mul" and len(present) == 1:
        return _scaled(node, present[0], way)
    return []


def _turned(way: _Way) -> _Way:
    return replace(way, sign=-way.sign)


def _scaled(node: Node, inside: Edge, way: _Way) -> list[tuple[Edge, _Way]]:
    factor = constant_factor(node)
    if factor is None:
        return []
    if not isinstance(factor, torch.Tensor):
        return [(inside, replace(way, sign=way.sign * factor))] if factor else []
    if factor.numel() > 1:
        return [(inside, replace(way, is_weighted=True))]
    if factor.device.type != "cpu" or factor.is_complex():
        return []  # the training would have to wait for it
    number = float(factor.item())
    return [(inside, replace(way, sign=way.sign * number))] if number else []


def _is_of_quotient(node: Node) -> bool:
    inside = only_edge(node)
    return inside is not None and not is_leaf(inside[0]) and operation(inside[0]) == "Div"


def _is_positive(edge: Edge | None) -> bool:
    """Behind constants that are added or multiplied, as in `2 * (softplus(x) + 0.001) ** 2`."""
    for _ in range(8):
        if edge is None or is_leaf(edge[0]):
            return False
        name = operation(edge[0])
        if name in _POSITIVE or _is_square(edge[0]):
            return True
        if name not in SAME_VALUES and name not in ("Add", "Mul", "Div", "Clamp", "ClampMin"):
            return False
        edge = only_edge(edge[0])
    return False


def _is_square(node: Node) -> bool:
    inputs = [one for one in edges(node) if one is not None]
    if operation(node) == "Mul":
        return len(inputs) == 2 and inputs[0] == inputs[1]
    power = saved(node, "exponent") if operation(node) == "Pow" else None
    return isinstance(power, (int, float)) and power % 2 == 0
