"""The linear layer that made some values, as the graph shows it."""

from collections.abc import Set
from typing import NamedTuple

import torch

from undertow.probe.signals.graph_values import Value

PRODUCTS = ("Addmm", "Mm")


class LinearLayer(NamedTuple):
    inputs: torch.Tensor  # rows × features
    weight: torch.Tensor
    bias: torch.Tensor | None


def weight_of(product: Value) -> torch.Tensor | None:
    return product.parameter_at(2 if product.operation == "Addmm" else 1)


def linear_layer(made: Value, through: Set[str]) -> LinearLayer | None:
    """None where something else made these values. `through`: what may lie between a product and its bias."""
    bias, product = None, made
    has_bias = made.operation in ("Addmm", "Add")
    if has_bias:
        bias = made.parameter_at(0 if made.operation == "Addmm" else 1)
    if made.operation == "Add":  # of more than two dimensions
        product = made.side(0).producer(through)
    inputs = product.tensor({"Addmm": "mat1", "Mm": "self"}.get(product.operation, ""))
    weight = weight_of(product)
    if inputs is None or inputs.dim() != 2 or weight is None or weight.dim() != 2 or weight.shape[1] != inputs.shape[1]:
        return None
    return None if has_bias and (bias is None or bias.dim() != 1) else LinearLayer(inputs, weight, bias)
