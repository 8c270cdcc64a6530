"""Building blocks of the picture networks, made by name from a registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

REGISTRY: dict[str, Callable[..., nn.Module]] = {}


def block(name: str) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def enter(kind: type[nn.Module]) -> type[nn.Module]:
        REGISTRY[name] = kind
        return kind

    return enter


def build(kind: str, **options: Any) -> nn.Module:
    return REGISTRY[kind](**options)


def build_all(plan: list[dict[str, Any]]) -> nn.Sequential:
    return nn.Sequential(*(build(**line) for line in plan))


@block("stem")
class Stem(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


@block("residual")
class Residual(nn.Module):
    """Two convolutions and a short cut; the last gain starts at zero, so that the block starts as the identity."""

    def __init__(self, width: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        nn.init.zeros_(self.norm2.weight)
        same = stride == 1 and width == out
        self.shortcut = nn.Identity() if same else nn.Conv2d(width, out, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.shortcut(x) + self.norm2(self.conv2(inner)))


@block("pooled_head")
class PooledHead(nn.Module):
    def __init__(self, width: int, classes: int, groups: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, width)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.dropout(self.norm(x.mean((2, 3)))))
