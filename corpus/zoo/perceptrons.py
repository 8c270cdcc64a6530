"""Fully connected networks: the plain ones, and those with tiny, huge or unusual gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy
from corpus.data import digits
from undertow.demos.data import glyphs, share_correct


def _train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, data: tuple[Tensor, Tensor], batch_size: int = 64,
    loss_of: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
) -> dict[str, float]:  # fmt: skip
    inputs, labels = data
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (batch_size,))
        loss = loss_of(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=200, architecture="perceptron")
def mlp_momentum(steps: int, seed: int) -> dict[str, float]:
    """A ReLU network on handwritten digits, SGD with momentum."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return _train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), steps, digits())


@healthy(steps=200, architecture="deep perceptron")
def deep_tanh(steps: int, seed: int) -> dict[str, float]:
    """Eight tanh layers with Xavier initialisation."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for width in (64, *[48] * 7):
        linear = nn.Linear(width, 48)
        nn.init.xavier_uniform_(linear.weight, gain=5 / 3)
        layers += [linear, nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(48, 10))
    return _train(model, torch.optim.Adam(model.parameters(), lr=1e-3), steps, digits())


class ResidualBlock(nn.Module):
    def __init__(self, width: int, zero_scale: bool = False) -> None:
        super().__init__()
        self.norm = nn.Identity() if zero_scale else nn.LayerNorm(width)
        self.grow = nn.Linear(width, 2 * width)
        self.shrink = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.zeros(1)) if zero_scale else None

    def forward(self, x: Tensor) -> Tensor:
        branch = self.shrink(functional.gelu(self.grow(self.norm(x))))
        return x + (branch if self.scale is None else self.scale * branch)


@healthy(steps=150, architecture="residual")
def residual_prenorm(steps: int, seed: int) -> dict[str, float]:
    """Eight pre-norm residual blocks."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 32), *[ResidualBlock(32) for _ in range(8)], nn.LayerNorm(32), nn.Linear(32, 10)
    )
    return _train(model, torch.optim.AdamW(model.parameters(), lr=2e-3), steps, digits())


@healthy(steps=150, architecture="residual", adversarial="a gradient that is exactly zero at the start is a fault")
def rezero(steps: int, seed: int) -> dict[str, float]:
    """Residual branches scaled by a zero: their weights have zero gradient at step 0 by design."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), *[ResidualBlock(32, zero_scale=True) for _ in range(6)], nn.Linear(32, 10))
    return _train(model, torch.optim.Adam(model.parameters(), lr=2e-3), steps, digits())


@healthy(steps=400, architecture="perceptron", adversarial="tiny gradients are vanishing")
def interpolation(steps: int, seed: int) -> dict[str, float]:
    """Full-batch training on 64 samples until the loss is almost nothing: tiny gradients by success."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed, count=64)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=150, architecture="perceptron", adversarial="gradients above an absolute threshold are exploding")
def summed_loss(steps: int, seed: int) -> dict[str, float]:
    """A loss summed over a batch of 256: gradients hundreds of times larger, and fine under Adam."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def total(logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels, reduction="sum")

    return _train(model, torch.optim.Adam(model.parameters(), lr=3e-3), steps, digits(), 256, total)


@healthy(steps=150, architecture="perceptron")
def weight_and_spectral_norm(steps: int, seed: int) -> dict[str, float]:
    """Weights behind parametrizations: weight norm on one layer, spectral norm on another."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(64, 48)), nn.ReLU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(48, 32)), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    return _train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), steps, digits())


@healthy(steps=25, architecture="perceptron", adversarial="several backward passes to a step are an accumulation")
def lbfgs(steps: int, seed: int) -> dict[str, float]:
    """LBFGS, which calls its closure several times within one step."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed, count=256)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels) + 1e-3 * sum(
            (p.square().sum() for p in model.parameters()), torch.zeros(())
        )
        loss.backward()
        return loss

    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = optimizer.step(closure).detach()  # pyright: ignore[reportArgumentType]
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=200, architecture="perceptron", adversarial="a loss that leaps is a spike")
def curriculum_jump(steps: int, seed: int) -> dict[str, float]:
    """The data become much harder half-way, so the loss jumps on purpose."""
    torch.manual_seed(seed)
    easy, hard = glyphs(seed, noise=0.1), glyphs(seed, noise=1.5)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    _train(model, optimizer, steps // 2, easy)
    return _train(model, optimizer, steps - steps // 2, hard)
