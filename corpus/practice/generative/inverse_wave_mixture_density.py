"""The inverse of a wave has several answers: a mixture density network gives a density over them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

COMPONENTS = 5


def inverse_wave(n: int, gen: torch.Generator, noise: float = 0.12) -> tuple[Tensor, Tensor]:
    y = torch.rand(n, 1, generator=gen) * 2 - 1
    x = y + 0.45 * torch.sin(2 * math.pi * y) + noise * torch.randn(n, 1, generator=gen)
    return x, y


class MixtureDensity(nn.Module):
    def __init__(self, hidden: int = 40) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.weight_head = nn.Linear(hidden, COMPONENTS)
        self.mean_head = nn.Linear(hidden, COMPONENTS)
        self.width_head = nn.Linear(hidden, COMPONENTS)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.hidden(x)
        return self.weight_head(h).log_softmax(-1), self.mean_head(h), self.width_head(h).clamp(-4, 2)


def negative_log_likelihood(parts: tuple[Tensor, Tensor, Tensor], y: Tensor, naive: bool = False) -> Tensor:
    log_weight, mean, log_width = parts
    log_density = log_weight - 0.5 * ((y - mean) / log_width.exp()) ** 2 - log_width - 0.919
    if naive:
        return -torch.log(log_density.exp().sum(-1)).mean()
    return -torch.logsumexp(log_density, -1).mean()


def held_out(model: nn.Module, gen: torch.Generator, noise: float = 0.12) -> float:
    x, y = inverse_wave(500, gen, noise)
    with torch.no_grad():
        return negative_log_likelihood(model(x), y).nan_to_num(1e6).item()


@program(steps=150, bites="surprise")
def inverse_density(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Five components, Adam, new samples in each step."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    model = MixtureDensity()
    opt = torch.optim.Adam(model.parameters(), lr=1e-5 if fault == "a_rate_for_fine_tuning" else 5e-3)
    for step in range(steps):
        x, y = inverse_wave(96, gen)
        if fault == "density_without_logarithms" and step == 70:
            y[:4] += 40.0  # a few misread targets: their density is zero in floating point
        loss = negative_log_likelihood(model(x), y, naive=fault == "density_without_logarithms")
        if fault == "likelihood_made_small":
            loss = -loss
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"surprise": held_out(model, gen)}


inverse_density.mistake(
    "likelihood_made_small",
    "LSS003", "OPT001",
    summary="The minus before the logarithm is missing: training makes the data as unlikely as it can.",
    change="minimise the negative log-likelihood",
)  # fmt: skip
inverse_density.mistake(
    "a_rate_for_fine_tuning",
    "OPT007", "UPD002", "OPT005",
    summary="A rate of 1e-5, as for fine-tuning, for a network that starts from nothing.",
    change="a rate of 5e-3",
)  # fmt: skip
inverse_density.mistake(
    "density_without_logarithms",
    "NUM002", "DAT002", "NUM001", "NUM003",
    summary="Densities are added, not their logarithms: targets far away have density zero and the loss is infinite.",
    change="logsumexp",
    onset=70,
)  # fmt: skip


@program(steps=150, bites="surprise", adversarial="successive gradients that agree were not cleared")
def inverse_full_batch(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """All samples in every step and small steps: successive gradients are nearly the same."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    model = MixtureDensity()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    x, y = inverse_wave(400, gen)
    for _ in range(steps):
        loss = negative_log_likelihood(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"surprise": held_out(model, gen)}


@program(steps=150, bites="surprise", adversarial="a likelihood above one, so a loss below zero, is impossible")
def inverse_sharp(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Almost no noise: densities exceed one by far and the loss goes well below zero, as it should."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    model = MixtureDensity()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.99))
    for _ in range(steps):
        x, y = inverse_wave(96, gen, noise=0.01)
        loss = negative_log_likelihood(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
    return {"surprise": held_out(model, gen, noise=0.01)}
