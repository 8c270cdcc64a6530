"""How much a code says about its sample, where the loss holds its divergence from a standard normal prior.

A variational autoencoder adds half of `mean² + variance − log variance − 1` to its loss. What a sample's code can tell
the decoder, in nats, is at most the mean of that sum over all samples: near zero, the code is noise.
"""

import math
from dataclasses import dataclass

import torch

from undertow.probe.signals.nodes import (
    SAME_VALUES,
    Edge,
    Node,
    edges,
    is_leaf,
    only_edge,
    operation,
    producer,
    saved,
    saved_tensor,
)
from undertow.probe.signals.unbounded_loss import exponent, linear_parts

_MOST_ELEMENTS = 1 << 15
_SHIFTED = SAME_VALUES | {"Sub", "Add", "Div", "Mul"}  # by the prior's mean and deviation


@dataclass(frozen=True, slots=True)
class Latent:
    source: Node  # what made the means
    nats: float  # divergence from the prior, per sample


def read_latent(root: torch.Tensor) -> Latent | None:
    """None where no such divergence stands in the loss, or where its values cannot be had."""
    if root.grad_fn is None:
        return None
    parts = linear_parts(root)
    squares = [(edge, inside) for edge in parts if (inside := _squared(edge)) is not None]
    for edge, sign in parts.items():
        variance = _variance(edge, sign, parts, [inside for _, inside in squares])
        if variance is None or variance.dim() < 2 or len(variance) < 2:
            continue
        for square, inside in squares:
            mean = _values(square)
            source = producer(inside, _SHIFTED)
            if mean is None or source is None or is_leaf(source[0]) or parts[square] * sign >= 0:
                continue
            if mean.shape == variance.shape and not torch.equal(mean.square(), variance):
                return Latent(source[0], _divergence(mean, variance))
    return None


def _divergence(mean: torch.Tensor, variance: torch.Tensor) -> float:
    mean, variance = mean.float(), variance.float()
    every = 0.5 * (mean.square() + variance - variance.clamp_min(1e-30).log() - 1)
    nats = float(every.flatten(1).sum(1).mean())
    return nats if math.isfinite(nats) else math.nan


def _squared(edge: Edge) -> Edge | None:
    """What is squared here."""
    if is_leaf(edge[0]):
        return None
    name, inputs = operation(edge[0]), [one for one in edges(edge[0]) if one is not None]
    if name == "Pow" and saved(edge[0], "exponent") == 2 and inputs:
        return inputs[0]
    return inputs[0] if name == "Mul" and len(inputs) == 2 and inputs[0] == inputs[1] else None


def _values(square: Edge) -> torch.Tensor | None:
    return _small(saved_tensor(square[0], "self"))


def _small(values: torch.Tensor | None) -> torch.Tensor | None:
    if values is None or values.device.type != "cpu" or values.numel() > _MOST_ELEMENTS or values.is_complex():
        return None
    return values


def _variance(edge: Edge, sign: float, parts: dict[Edge, float], squared: list[Edge]) -> torch.Tensor | None:
    """The variance whose logarithm is taken off here, while it is itself added."""
    if sign >= 0:
        return None
    if not is_leaf(edge[0]) and operation(edge[0]) == "Log":
        inside = only_edge(edge[0])
        values = _small(saved_tensor(edge[0], "self"))
        if inside is None or values is None:
            return None
        if parts.get(inside, 0.0) > 0:
            return values
        return values.square() if inside in squared else None
    for other, added in parts.items():  # a log-variance, and its exponential
        if added > 0 and not is_leaf(other[0]) and operation(other[0]) == "Exp" and exponent(other[0])[0] == edge:
            return _small(saved_tensor(other[0], "result"))
    return None
