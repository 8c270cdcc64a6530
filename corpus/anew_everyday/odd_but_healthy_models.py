"""Healthy trainings of models that look broken to a naive rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from corpus.case import healthy
from undertow.demos.data import curves, glyphs, sentences, share_correct


def train_on_pictures(
    net: nn.Module, steps: int, seed: int, rate: float = 2e-3, noise: float = 0.5
) -> dict[str, float]:
    pictures, labels = glyphs(seed, 2500, noise=noise)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    net.train()
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = F.cross_entropy(net(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=noise)), "loss": loss.item()}


class Winners(nn.Module):
    """Only the largest units of a layer speak, others are silent; every unit wins at times."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        least = x.topk(self.count, dim=-1).values[..., -1:]
        return torch.where(x >= least, x, torch.zeros_like(x))


@healthy(steps=600, architecture="perceptron", adversarial="nine of ten activations are zero")
def everyday_few_winners(steps: int, seed: int) -> dict[str, float]:
    """Twelve of 128 units win in each layer and the others are set to zero."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 128), Winners(12), nn.Linear(128, 128), Winners(12), nn.Linear(128, 10))
    return train_on_pictures(net, steps, seed)


class Gated(nn.Module):
    """A block behind a gate that starts shut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * self.inner(x)


@healthy(steps=400, architecture="residual", adversarial="zero gradients in nearly all layers at the first step")
def everyday_gates_start_shut(steps: int, seed: int) -> dict[str, float]:
    """Eight residual blocks whose gates start at zero (ReZero)."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 48), *(Gated(48) for _ in range(8)), nn.Linear(48, 10))
    return train_on_pictures(net, steps, seed, rate=3e-3)


class Skipping(nn.Module):
    """A residual block that is left out at random while training."""

    def __init__(self, width: int, keep: float) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand(()).item() > self.keep:
            return x
        change = self.down(F.gelu(self.up(self.norm(x))))
        return x + (change / self.keep if self.training else change)


@healthy(steps=450, architecture="residual", adversarial="layers that get no gradient on some steps")
def everyday_stochastic_depth(steps: int, seed: int) -> dict[str, float]:
    """Six blocks, each of which is left out on up to half of the steps."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 48), *(Skipping(48, 1 - 0.08 * n) for n in range(1, 7)), nn.Linear(48, 10))
    return train_on_pictures(net, steps, seed)


class SignedCode(torch.autograd.Function):
    """The sign forward, a clipped identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class Sign(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return SignedCode.apply(x)


@healthy(steps=700, architecture="perceptron", adversarial="every activation is at one of its two limits")
def everyday_binary_codes(steps: int, seed: int) -> dict[str, float]:
    """Hidden layers say plus one or minus one; a straight-through estimator trains them."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(64, 128),
        nn.BatchNorm1d(128),
        Sign(),
        nn.Linear(128, 128),
        nn.BatchNorm1d(128),
        Sign(),
        nn.Linear(128, 10),
    )
    return train_on_pictures(net, steps, seed)


class Recomputed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + checkpoint(self.inner, x, use_reentrant=False)


@healthy(steps=350, architecture="residual", adversarial="modules that are called twice per step")
def everyday_recomputed_blocks(steps: int, seed: int) -> dict[str, float]:
    """Blocks with dropout are computed again in the backward pass to save memory."""
    torch.manual_seed(seed)
    blocks = (
        Recomputed(nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Dropout(0.1), nn.Linear(96, 48)))
        for _ in range(4)
    )
    return train_on_pictures(nn.Sequential(nn.Linear(64, 48), *blocks, nn.Linear(48, 10)), steps, seed)


@healthy(steps=700, architecture="perceptron", adversarial="weights that are divided by their norm at every use")
def everyday_spectral_regression(steps: int, seed: int) -> dict[str, float]:
    """Every layer has a spectral norm of one and a learned gain at the end."""
    torch.manual_seed(seed)
    x, y = curves(seed, 4000)
    net = nn.Sequential(
        spectral_norm(nn.Linear(8, 64)),
        nn.LeakyReLU(0.3),
        spectral_norm(nn.Linear(64, 64)),
        nn.LeakyReLU(0.3),
        nn.Linear(64, 1),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (96,))
        loss = F.mse_loss(net(x[rows]).squeeze(1), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


class TwoTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.shape, self.mean, self.spare = nn.Linear(64, 10), nn.Linear(64, 1), nn.Linear(64, 1)

    def forward(self, pictures: Tensor, task: str) -> Tensor:
        return getattr(self, task)(self.trunk(pictures))


@healthy(steps=600, architecture="multi-task", adversarial="heads that get no gradient on two of three steps")
def everyday_tasks_in_turn(steps: int, seed: int) -> dict[str, float]:
    """Three heads take turns: each step trains one of them."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2500, noise=0.5)
    model = TwoTasks()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        task = ("shape", "mean", "spare")[step % 3]
        rows = torch.randint(len(pictures), (64,))
        output = model(pictures[rows], task)
        if task == "shape":
            loss = F.cross_entropy(output, labels[rows])
        else:
            goal = pictures[rows].mean(1) if task == "mean" else pictures[rows].std(1)
            loss = F.mse_loss(output.squeeze(1), goal)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    pictures, labels = glyphs(seed + 1000, noise=0.5)
    with torch.no_grad():
        logits = model(pictures, "shape")
    return {
        "accuracy": (logits.argmax(1) == labels).float().mean().item(),
        "loss": F.cross_entropy(logits, labels).item(),
    }


class Reader(nn.Module):
    """Causal attention of one head with a learned bias for distance; keys have a bias that softmax ignores."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.words = nn.Embedding(32, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.distance = nn.Parameter(torch.zeros(24))
        self.norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, 32)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        n = words.shape[1]
        place = torch.arange(n)
        apart = (place[:, None] - place).clamp(min=0)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5 + self.distance[apart]
        scores = scores.masked_fill(place[:, None] < place, float("-inf"))
        return self.read(self.norm(scores.softmax(-1) @ self.value(x)))


@healthy(steps=350, architecture="attention", adversarial="infinite scores, and a bias whose gradient is zero")
def everyday_attention_with_key_bias(steps: int, seed: int) -> dict[str, float]:
    """Attention masked with minus infinity that ends up looking at exactly one place."""
    torch.manual_seed(seed)
    text = sentences(seed, 800)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(steps):
        batch = text[torch.randint(len(text), (32,))]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
