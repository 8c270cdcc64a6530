"""Does a loss make the right answers less likely? A cross-entropy written out by hand whose minus was lost.

Log-probabilities that are picked by a mask or by soft targets, or the logit of the right answer beside the logarithm
of the normaliser of all: what a likelihood is made of, and it must stand in a loss with a minus sign. Weights of rows
are no targets: a policy's returns or costs may have any sign, and nothing is said of what they weigh.
"""

import torch

from undertow.probe.signals.nodes import SAME_VALUES, Edge, Node, edges, is_leaf, only_edge, operation, producer
from undertow.probe.signals.terms import constant_factor, number_of

_MOST_NODES = 256
_MOST_ELEMENTS = 1 << 15
_SUMS = SAME_VALUES | {"Add", "Mean", "Sum", "Stack", "Cat"}
_PICKING = frozenset({"Diagonal", "DiagonalBackward0_copy", "Gather", "Index", "Select"})  # `diag` copies its view


def lowers_likelihood(root: torch.Tensor) -> bool:
    """Whether all likelihoods in a loss have the wrong sign; False, too, where there is none."""
    if root.grad_fn is None:
        return False
    waiting: list[tuple[Edge, float]] = [((root.grad_fn, int(root.output_nr)), 1.0)]
    signs: set[float] = set()  # of log-probabilities picked by targets
    picked: dict[Edge, set[float]] = {}  # logits of which some are picked, and the signs
    normalisers: list[tuple[Edge | None, float]] = []  # what they are taken over, and their signs
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        (node, _), sign = waiting.pop()
        if is_leaf(node):
            continue
        name, inside = operation(node), only_edge(node)
        if name == "Logsumexp":
            normalisers.append((inside, sign))
        elif inside is not None and (name in _PICKING or (name == "Mul" and _are_targets(constant_factor(node)))):
            made_by = producer(inside)
            if name == "Mul" and made_by is not None and not is_leaf(made_by[0]):
                signs |= {sign} if operation(made_by[0]) == "LogSoftmax" else set()
            picked.setdefault(inside, set()).add(sign)
        else:
            waiting += _beyond(node, sign)
    # Both are taken of the same logits: the picked one is raised, and all of them are held down.
    signs |= {-sign for over, sign in normalisers if over is not None and picked.get(over) == {-sign}}
    return signs == {1.0}


def _beyond(node: Node, sign: float) -> list[tuple[Edge, float]]:
    name, inputs = operation(node), edges(node)
    present = [one for one in inputs if one is not None]
    if name in _SUMS:
        return [(one, sign) for one in present]
    if name == "Sub":
        return [(one, -sign if place else sign) for place, one in enumerate(inputs) if one is not None]
    if name in ("Neg", "Rsub"):
        return [(one, -sign) for one in present]
    if len(present) != 1 or not (name == "Mul" or (name == "Div" and inputs[0] is not None)):
        return []
    factor = constant_factor(node)
    number = number_of(factor)
    if number is None and name == "Div" and _are_counts(factor):
        number = 1.0
    return [(present[0], sign if number > 0 else -sign)] if number else []


def _are_counts(divisor: torch.Tensor | float | None) -> bool:
    """As many as were picked in each row."""
    few = _few(divisor)
    return few is not None and bool((few > 0).all())


def _are_targets(factor: torch.Tensor | float | None) -> bool:
    """A mask over classes, or shares of them: of more than one dimension, from 0 to 1, and more than one number."""
    few = _few(factor)
    if few is None or few.dim() < 2 or few.shape[-1] < 2:
        return False
    return bool(((few >= 0) & (few <= 1)).all()) and bool((few != few.flatten()[0]).any())


def _few(values: torch.Tensor | float | None) -> torch.Tensor | None:
    """The first rows; None where the training would have to wait for them."""
    if not isinstance(values, torch.Tensor) or values.device.type != "cpu" or values.is_complex() or not values.dim():
        return None
    rows = max(1, _MOST_ELEMENTS * len(values) // max(values.numel(), 1)) if len(values) else 0
    few = values.detach()[:rows]
    return few if 0 < few.numel() <= _MOST_ELEMENTS else None
