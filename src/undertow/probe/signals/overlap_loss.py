"""Is a quotient an overlap of a prediction with a mask: Dice's coefficient, or intersection over union?"""

import torch

from undertow.probe.signals.graph_values import NOTHING, SAME_VALUES, Value, number_of

_MOST_NODES = 24
_SUMS = SAME_VALUES | {"Sum", "Mean", "Add"}
_SIZES = _SUMS | {"Sub", "Mul", "Pow", "Clamp", "ClampMin"}
_FEW = 1 << 14  # elements of a mask that are looked at


def is_overlap(division: Value) -> bool:
    """`2 * (p * mask).sum() / (p.sum() + …)`, or `i / (p.sum() + … - i)` with `i = (p * mask).sum()`."""
    product, twice = _intersection(division.side(0))
    if not product.only or not division.side(1):
        return False
    parts = _parts(division.side(1))
    return product.only in parts and (twice or product in parts)


def _intersection(value: Value) -> tuple[Value, bool]:
    """The product of a prediction with a mask that is summed up here, and whether it counts twice."""
    twice = False
    for _ in range(_MOST_NODES):
        if value.operation == "Mul" and value.only:
            factor = value.factor
            number = number_of(factor)
            if number is None:
                return (value, twice) if isinstance(factor, torch.Tensor) and _is_mask(factor) else (NOTHING, False)
            twice |= number == 2
        elif value.operation not in _SUMS:
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
    while waiting and len(found) < _MOST_NODES:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += value.inputs if value.operation in _SIZES else []
    return found
