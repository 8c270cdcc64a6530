"""Small models and random batches for the loops of torch alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def mlp(*widths: int) -> nn.Sequential:
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout2d(0.2),
        nn.Conv2d(8, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.LazyLinear(5),
    )  # fmt: skip


def rows() -> Tensor:
    return torch.randn(16, 8)


def classes() -> Tensor:
    return torch.randint(0, 4, (16,))


def classify(model: Callable[[Tensor], Tensor]) -> Tensor:
    return F.cross_entropy(model(rows()), classes())
