"""Small models of many kinds, each with its batches: for tests that must hold on all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint


@dataclass
class Case:
    model: nn.Module
    batch: Callable[[int], tuple[torch.Tensor, ...]]
    loss: Callable[..., torch.Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = lambda m: torch.optim.SGD(
        m.parameters(), lr=0.05, momentum=0.9
    )


def _images(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(step)
    return torch.randn(8, 3, 12, 12, generator=g), torch.randint(0, 5, (8,), generator=g)


def _rows(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(step)
    return torch.randn(16, 10, generator=g), torch.randint(0, 5, (16,), generator=g)


def _tokens(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 20, (4, 9), generator=g)
    return tokens[:, :-1], tokens[:, 1:]


def _next_token(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


class StochasticDepth(nn.Module):
    """Drops blocks by a coin of torch's and one of Python's own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(10, 16), nn.Linear(16, 5)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for i, block in enumerate(self.blocks):
            coin = float(torch.rand(())) if i % 2 else random.random()
            if not self.training or coin > 0.3:
                h = h + block(h).relu()
        return self.head(h)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1)
        )
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        return self.head(self.norm(h + self.body(h)).relu_().mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embed, self.core, self.head = nn.Embedding(20, 12), kind(12, 16, batch_first=True), nn.Linear(16, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.core(self.embed(x))[0])


class Transformer(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.checkpointed else block(h)
        return self.head(h)


class Mixture(nn.Module):
    """Experts chosen by the input: some get no gradient in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(10, 4), nn.Linear(16, 5)
        self.experts = nn.ModuleList(nn.Linear(10, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, choice = self.router(x).softmax(-1).max(-1)
        out = x.new_zeros(len(x), 16)
        for i, expert in enumerate(self.experts):
            picked = choice == i
            if picked.any():
                out[picked] = expert(x[picked]) * weight[picked, None]
        return self.head(out.relu())


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(10, 8), nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return (self.decode(z) - x).square().mean() - 0.05 * (1 + log_variance - mean**2 - log_variance.exp()).mean()


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


CASES: dict[str, Callable[[], Case]] = {
    "mlp with dropout": lambda: Case(
        nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5)), _rows, F.cross_entropy
    ),
    "stochastic depth": lambda: Case(StochasticDepth(), _rows, F.cross_entropy),
    "deep tanh": lambda: Case(
        nn.Sequential(*[nn.Sequential(nn.Linear(10, 10), nn.Tanh()) for _ in range(8)]), _rows, F.cross_entropy
    ),
    "cnn": lambda: Case(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, 5)),
        _images, F.cross_entropy, _adam,
    ),
    "residual with batch norm": lambda: Case(Residual(), _images, F.cross_entropy),
    "channels last": lambda: Case(Residual().to(memory_format=torch.channels_last), _images, F.cross_entropy),
    "lstm": lambda: Case(Recurrent(nn.LSTM), _tokens, _next_token, _adam),
    "gru": lambda: Case(Recurrent(nn.GRU), _tokens, _next_token, lambda m: torch.optim.RMSprop(m.parameters(), 1e-3)),
    "tied transformer": lambda: Case(Transformer(), _tokens, _next_token, _adam),
    "checkpointed transformer": lambda: Case(Transformer(checkpointed=True), _tokens, _next_token, _adam),
    "mixture of experts": lambda: Case(Mixture(), _rows, F.cross_entropy, _adam),
    "variational": lambda: Case(Variational(), lambda step: _rows(step)[:1], lambda out: out, _adam),
    "group and layer norm": lambda: Case(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.LayerNorm(800),
                      nn.Linear(800, 5)), _images, F.cross_entropy,
    ),
    "bfloat16": lambda: Case(
        nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 5)).bfloat16(),
        lambda step: (_rows(step)[0].bfloat16(), _rows(step)[1]), lambda out, y: F.cross_entropy(out.float(), y),
    ),
    "weight norm": lambda: Case(
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(10, 32)), nn.ELU(), nn.Linear(32, 5)),
        _rows, F.cross_entropy,
    ),
}  # fmt: skip
