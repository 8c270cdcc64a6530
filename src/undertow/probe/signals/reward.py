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

from undertow.probe.signals.graph_values import NOTHING, SAME_VALUES, SUMS, Value, number_of, value_of
from undertow.schema import Floor

_MOST_NODES = 512
_HELD = -1.0
_SUMS = SUMS | {"Gather", "Index", "Select"}
_GROWING = frozenset({"Logsumexp", "Log", "Sqrt"})
_SIZES = frozenset({"Pow", "Abs", "Mul", "LinalgVectorNorm", "Norm"})
_POSITIVE = frozenset({"Exp", "Softplus", "Sigmoid", "Softmax", "Abs", "Sqrt", "Relu"})
_MOST_PARTS = 24  # of a quotient
_ADDED = SAME_VALUES | {"Sum", "Mean", "Add"}
_MEASURED = _ADDED | {"Sub", "Mul", "Pow", "Clamp", "ClampMin"}
_FEW = 1 << 14  # elements of a mask that are read
_LOOKED_UP = SAME_VALUES | {"Embedding", "Select", "Index", "IndexSelect"}


@dataclass(frozen=True, slots=True)
class _Way:
    """How the loss depends on what is reached."""

    sign: float = 1.0
    is_density: bool = False  # a division by something positive, or a sum of exponentials, lies behind
    is_weighted: bool = False  # row by row: advantages, which may all be negative


def rewards(root: torch.Tensor) -> float | None:
    """Which of these a loss does; None for none."""
    waiting = [(value_of(root), _Way())]
    found: set[float] = set()
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        value, way = waiting.pop()
        if value.operation in _SIZES:
            found.add(_sized(value, way))
        elif value.operation == "Div" and way.sign > 0 and not way.is_weighted and _is_overlap(value):
            found.add(Floor.PUNISHES_OVERLAP)
        waiting += _beyond(value, way)
    if _HELD in found:  # where errors stand in the loss with both signs, as in a contrast, they hold each other
        found.discard(Floor.REWARDS_ERRORS)
    return max(found - {_HELD, Floor.NONE}, default=None)


def _sized(value: Value, way: _Way) -> float:
    """Whether this is the size of an error, or of weights, and which reward it then is."""
    made_by = _measured(value).producer(_LOOKED_UP)
    if made_by.is_leaf:
        return Floor.REWARDS_WEIGHTS if way.sign < 0 else Floor.NONE
    if made_by.operation == "Logsumexp":
        return Floor.REWARDS_NORMALISER if way.sign < 0 and not way.is_weighted else Floor.NONE
    if made_by.operation != "Sub" or not made_by.only:
        return Floor.NONE
    if way.sign > 0:
        return _HELD
    return Floor.REWARDS_ERRORS if way.is_density and not way.is_weighted else Floor.NONE


def _measured(value: Value) -> Value:
    """What this is the size of: a square, an absolute value, a norm."""
    inside = value.only
    if value.operation == "Mul":
        return value.inputs[0] if _is_square(value) else NOTHING
    if value.operation == "Pow":
        if not _is_square(value) or value.saved("exponent") <= 0:
            return NOTHING
        if inside.operation == "Div":
            return inside.side(0) or inside  # an error over its deviation
    return inside


def _beyond(value: Value, way: _Way) -> list[tuple[Value, _Way]]:
    name, inputs = value.operation, value.inputs
    if name in _GROWING:
        return [(one, replace(way, is_density=True)) for one in inputs]
    if name == "Div" and len(inputs) == 2 and _is_positive(inputs[1]):
        return [(inputs[0], replace(way, is_density=True))]
    found: list[tuple[Value, _Way]] = []
    for one, factor in value.summands(_SUMS):
        number = number_of(factor)
        if isinstance(factor, torch.Tensor) and factor.numel() > 1:
            found.append((one, replace(way, is_weighted=True)))
        elif number:  # for others the training would have to wait
            found.append((one, replace(way, sign=way.sign * number)))
    return found


def _is_positive(value: Value) -> bool:
    """Behind constants that are added or multiplied, as in `2 * (softplus(x) + 0.001) ** 2`."""
    for _ in range(8):
        if value.operation in _POSITIVE or _is_square(value):
            return True
        if value.operation not in SAME_VALUES and value.operation not in ("Add", "Mul", "Div", "Clamp", "ClampMin"):
            return False
        value = value.only
    return False


def _is_square(value: Value) -> bool:
    if value.operation == "Mul":
        inputs = value.inputs
        return len(inputs) == 2 and inputs[0] == inputs[1]
    power = value.saved("exponent") if value.operation == "Pow" else None
    return isinstance(power, (int, float)) and power % 2 == 0


# -- Dice's coefficient, or intersection over union ---------------------------------------------------------------


def _is_overlap(division: Value) -> bool:
    """`2 * (p * mask).sum() / (p.sum() + …)`, or `i / (p.sum() + … - i)` with `i = (p * mask).sum()`."""
    product, twice = _intersection(division.side(0))
    if not product.only or not division.side(1):
        return False
    parts = _parts(division.side(1))
    return product.only in parts and (twice or product in parts)


def _intersection(value: Value) -> tuple[Value, bool]:
    """The product of a prediction with a mask that is summed up here, and whether it counts twice."""
    twice = False
    for _ in range(_MOST_PARTS):
        if value.operation == "Mul" and value.only:
            factor = value.factor
            number = number_of(factor)
            if number is None:
                return (value, twice) if isinstance(factor, torch.Tensor) and _is_mask(factor) else (NOTHING, False)
            twice |= number == 2
        elif value.operation not in _ADDED:
            break
        value = value.only
    return NOTHING, False


def _is_mask(values: torch.Tensor) -> bool:
    """Zeros and ones. Elsewhere than on the CPU the training would have to wait for it."""
    if values.device.type != "cpu" or values.numel() < 2:
        return values.device.type != "cpu"
    some = values.detach().reshape(-1)[:_FEW]
    return bool(((some == 0) | (some == 1)).all())


def _parts(total: Value) -> set[Value]:
    """What a sum is made of."""
    found: set[Value] = set()
    waiting = [total]
    while waiting and len(found) < _MOST_PARTS:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += value.inputs if value.operation in _MEASURED else []
    return found
