"""The three trainings the overhead benchmark times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class Workload:
    """A model in training. `warm` steps of each block are not timed, `timed` steps are.

    A block lasts longer than Undertow keeps frames together before it works on them: that work is timed, too.
    """

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]
    warm: int
    timed: int
    repeats: int = 1  # blocks for each one of the others: short blocks differ more


def mlp() -> Workload:
    """64-64-32-10 on scikit-learn's digits, batch 64."""
    inputs, labels = _digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss() -> Tensor:
        batch = torch.randint(len(inputs), (64,))
        return functional.cross_entropy(model(inputs[batch]), labels[batch])

    return Workload("MLP on digits", model, optimizer, loss, warm=300, timed=1024, repeats=2)


def cnn() -> Workload:
    """Four convolutions with batch norm on 32 × 32 pictures, batch 32."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 32, 64, 64):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    inputs, labels = torch.randn(256, 3, 32, 32), torch.randint(10, (256,))

    def loss() -> Tensor:
        batch = torch.randint(len(inputs), (32,))
        return functional.cross_entropy(model(inputs[batch]), labels[batch])

    return Workload("small CNN", model, optimizer, loss, warm=10, timed=128)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.norm1(x)).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.shrink(functional.gelu(self.grow(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int = 1024, length: int = 128, width: int = 256, depth: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, 8) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def gpt() -> Workload:
    """A GPT of width 256, 6 blocks, 128 tokens, batch 8, AdamW."""
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss() -> Tensor:
        tokens = torch.randint(1024, (8, 129))
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return Workload("GPT-like", model, optimizer, loss, warm=4, timed=24)


def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    return torch.tensor(pictures, dtype=torch.float32) / 16, torch.tensor(labels)


WORKLOADS: dict[str, Callable[[], Workload]] = {"mlp": mlp, "cnn": cnn, "gpt": gpt}
