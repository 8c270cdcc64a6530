"""Is a quotient an overlap of a prediction with a mask: Dice's coefficient, or intersection over union?"""

import torch

from undertow.probe.signals.nodes import SAME_VALUES, Edge, Node, edges, is_leaf, only_edge, operation
from undertow.probe.signals.terms import constant_factor, number_of

_MOST_NODES = 24
_SUMS = SAME_VALUES | {"Sum", "Mean", "Add"}
_SIZES = _SUMS | {"Sub", "Mul", "Pow", "Clamp", "ClampMin"}
_FEW = 1 << 14  # elements of a mask that are looked at


def is_overlap(division: Node) -> bool:
    """`2 * (p * mask).sum() / (p.sum() + …)`, or `i / (p.sum() + … - i)` with `i = (p * mask).sum()`."""
    above, below = [*edges(division), None, None][:2]
    if above is None or below is None:
        return False
    product, twice = _intersection(above)
    predicted = only_edge(product[0]) if product is not None else None
    if product is None or predicted is None:
        return False
    parts = _parts(below)
    return predicted in parts and (twice or product in parts)


def _intersection(edge: Edge) -> tuple[Edge | None, bool]:
    """The product of a prediction with a mask that is summed up here, and whether it counts twice."""
    twice, current = False, edge
    for _ in range(_MOST_NODES):
        if is_leaf(current[0]):
            break
        name, inside = operation(current[0]), only_edge(current[0])
        if inside is None:
            break
        if name == "Mul":
            factor = constant_factor(current[0])
            number = number_of(factor)
            if number is None:
                return (current, twice) if isinstance(factor, torch.Tensor) and _is_mask(factor) else (None, False)
            twice |= number == 2
        elif name not in _SUMS:
            break
        current = inside
    return None, False


def _is_mask(values: torch.Tensor) -> bool:
    """Zeros and ones. Elsewhere than on the CPU the training would have to wait for it."""
    if values.device.type != "cpu" or values.numel() < 2:
        return values.device.type != "cpu"
    some = values.detach().reshape(-1)[:_FEW]
    return bool(((some == 0) | (some == 1)).all())


def _parts(edge: Edge) -> set[Edge]:
    """What a sum is made of."""
    found: set[Edge] = set()
    waiting = [edge]
    while waiting and len(found) < _MOST_NODES:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        if not is_leaf(current[0]) and operation(current[0]) in _SIZES:
            waiting += [one for one in edges(current[0]) if one is not None]
    return found
