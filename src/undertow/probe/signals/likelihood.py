"""Does a loss make the right answers less likely? A cross-entropy written out by hand whose minus was lost.

Log-probabilities that are picked by a mask or by soft targets, or the logit of the right answer beside the logarithm
of the normaliser of all: what a likelihood is made of, and it must stand in a loss with a minus sign. Weights of rows
are no targets: a policy's returns or costs may have any sign, and nothing is said of what they weigh.
"""

import torch

from undertow.probe.signals.graph_values import Factor, Value, number_of, value_of

_MOST_NODES = 256
_MOST_ELEMENTS = 1 << 15
_PICKING = frozenset({"Diagonal", "DiagonalBackward0_copy", "Gather", "Index", "Select"})  # `diag` copies its view


def lowers_likelihood(root: torch.Tensor) -> bool:
    """Whether all likelihoods in a loss have the wrong sign; False, too, where there is none."""
    waiting = [(value_of(root), 1.0)]
    signs: set[float] = set()  # of log-probabilities picked by targets
    picked: dict[Value, set[float]] = {}  # logits of which some are picked, and the signs
    normalisers: list[tuple[Value, float]] = []  # what they are taken over, and their signs
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        value, sign = waiting.pop()
        name, inside = value.operation, value.only
        if name == "Logsumexp":
            normalisers.append((inside, sign))
        elif inside and (name in _PICKING or (name == "Mul" and _are_targets(value.factor))):
            if name == "Mul" and inside.producer().operation == "LogSoftmax":
                signs.add(sign)
            picked.setdefault(inside, set()).add(sign)
        else:
            for one, factor in value.summands():
                number = number_of(factor)
                if number is None and name == "Div" and _are_counts(factor):
                    number = 1.0
                if number:
                    waiting.append((one, sign if number > 0 else -sign))
    # Both are taken of the same logits: the picked one is raised, and all of them are held down.
    signs |= {-sign for over, sign in normalisers if over and picked.get(over) == {-sign}}
    return signs == {1.0}


def _are_counts(divisor: Factor) -> bool:
    """As many as were picked in each row."""
    few = _few(divisor)
    return few is not None and bool((few > 0).all())


def _are_targets(factor: Factor | None) -> bool:
    """A mask over classes, or shares of them: of more than one dimension, from 0 to 1, and more than one number."""
    few = _few(factor)
    if few is None or few.dim() < 2 or few.shape[-1] < 2:
        return False
    return bool(((few >= 0) & (few <= 1)).all()) and bool((few != few.flatten()[0]).any())


def _few(values: Factor | None) -> torch.Tensor | None:
    """The first rows; None where the training would have to wait for them."""
    if not isinstance(values, torch.Tensor) or values.device.type != "cpu" or values.is_complex() or not values.dim():
        return None
    rows = max(1, _MOST_ELEMENTS * len(values) // max(values.numel(), 1)) if len(values) else 0
    few = values.detach()[:rows]
    return few if 0 < few.numel() <= _MOST_ELEMENTS else None
