"""How much a code says about its sample, where the loss holds its divergence from a standard normal prior.

A variational autoencoder adds half of `mean² + variance − log variance − 1` to its loss. What a sample's code can tell
the decoder, in nats, is at most the mean of that sum over all samples: near zero, the code is noise.
"""

import math
from typing import NamedTuple

import torch

from undertow.probe.signals.graph_values import NOTHING, SAME_VALUES, Value
from undertow.probe.signals.unbounded_loss import exponent, linear_parts

_MOST_ELEMENTS = 1 << 15
_SHIFTED = SAME_VALUES | {"Sub", "Add", "Div", "Mul"}  # by the prior's mean and deviation


class Latent(NamedTuple):
    source: Value  # what made the means
    nats: float  # divergence from the prior, per sample


def read_latent(root: torch.Tensor) -> Latent | None:
    """None where no such divergence stands in the loss, or where its values cannot be had."""
    parts = linear_parts(root)
    squares = {value: inside for value in parts if (inside := _squared(value))}
    for value, sign in parts.items():
        variance = _variance(value, parts, list(squares.values())) if sign < 0 else None
        if variance is None or variance.dim() < 2 or len(variance) < 2:
            continue
        for square, inside in squares.items():
            mean, source = _small(square, "self"), inside.producer(_SHIFTED)
            if mean is None or not source or source.is_leaf or parts[square] * sign >= 0:
                continue
            if mean.shape == variance.shape and not torch.equal(mean.square(), variance):
                return Latent(source, _divergence(mean.float(), variance.float()))
    return None


def _divergence(mean: torch.Tensor, variance: torch.Tensor) -> float:
    every = 0.5 * (mean.square() + variance - variance.clamp_min(1e-30).log() - 1)
    nats = float(every.flatten(1).sum(1).mean())
    return nats if math.isfinite(nats) else math.nan


def _squared(value: Value) -> Value:
    """What is squared here."""
    name, inputs = value.operation, value.inputs
    if name == "Pow" and value.saved("exponent") == 2 and inputs:
        return inputs[0]
    return inputs[0] if name == "Mul" and len(inputs) == 2 and inputs[0] == inputs[1] else NOTHING


def _small(value: Value, name: str) -> torch.Tensor | None:
    found = value.tensor(name)
    if found is None or found.device.type != "cpu" or found.numel() > _MOST_ELEMENTS or found.is_complex():
        return None
    return found


def _variance(value: Value, parts: dict[Value, float], squared: list[Value]) -> torch.Tensor | None:
    """The variance whose logarithm is taken off here, while it is itself added."""
    if value.operation == "Log":
        inside, values = value.only, _small(value, "self")
        if values is None or parts.get(inside, 0.0) > 0:
            return values
        return values.square() if inside in squared else None
    for other, added in parts.items():  # a log-variance, and its exponential
        if added > 0 and other.operation == "Exp" and exponent(other)[0] == value:
            return _small(other, "result")
    return None
