"""Long runs of very cheap steps: small fits whose learning rates come and go for tens of thousands of steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program


def rooms(seed: int) -> tuple[Tensor, Tensor]:
    """How fast rooms lose their heat."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4096, 6, generator=generator)
    y = torch.tanh(x[:, :1] - x[:, 1:2]) + 0.4 * x[:, 2:3] * x[:, 3:4].sigmoid()
    return x, y + 0.1 * torch.randn(4096, 1, generator=generator)


def error_of(net: nn.Module) -> float:
    x, y = rooms(31337)
    with torch.no_grad():
        error = functional.mse_loss(net(x), y).item()
    return min(error, 5.0) if math.isfinite(error) else 5.0


@program(steps=22000, bites="error", adversarial="the learning rate comes back to its full height ten times")
def thermostat_restarts(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Cosine rates with warm restarts, every two thousand steps."""
    torch.manual_seed(seed)
    x, y = rooms(seed + 1)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2000)
    for step in range(steps):
        start = step * 32 % 4064
        part, wanted = x[start : start + 32], y[start : start + 32]
        if mistake == "thermostat_restarts_drift" and step >= 15000:
            part = part * 60 + 40
        loss = functional.mse_loss(net(part), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if mistake == "thermostat_restarts_other_height" and step == 15999:
            schedule.base_lrs = [5.0]
        schedule.step()
    return {"error": error_of(net)}


thermostat_restarts.mistake(
    "thermostat_restarts_other_height",
    "OPT007",
    "UPD001",
    "OPT001",
    "OPT003",
    onset=16000,
    summary="From the ninth cycle on the rate starts a hundred times higher.",
    change="all cycles are of one height",
)
thermostat_restarts.mistake(
    "thermostat_restarts_drift",
    "DAT001",
    "ACT002",
    onset=15000,
    summary="After fifteen thousand steps the sensors report in other units.",
    change="one unit for all of the run",
)


@healthy(steps=20000, adversarial="the learning rate rises and falls by a factor of thirty, over and over")
def thermostat_cycles(steps: int, seed: int) -> dict[str, float]:
    """Triangular cycles of the rate and, against it, of the momentum."""
    torch.manual_seed(seed)
    x, y = rooms(seed + 1)
    net = nn.Sequential(nn.Linear(6, 12), nn.Softsign(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.002, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.002, 0.06, step_size_up=900)
    for step in range(steps):
        start = step * 24 % 4064
        loss = functional.mse_loss(net(x[start : start + 24]), y[start : start + 24])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"loss": error_of(net)}


@healthy(steps=24000, adversarial="most of the run is a plateau at the noise, and no optimizer is there")
def thermostat_by_hand(steps: int, seed: int) -> dict[str, float]:
    """A linear fit moved by hand, at a rate that falls like one over the root of time."""
    torch.manual_seed(seed)
    x, y = rooms(seed + 1)
    net = nn.Linear(6, 1)
    weights = list(net.parameters())
    for step in range(steps):
        start = step * 16 % 4080
        loss = functional.mse_loss(net(x[start : start + 16]), y[start : start + 16])
        slopes = torch.autograd.grad(loss, weights)
        for weight, slope in zip(weights, slopes):
            weight.data.add_(slope, alpha=-0.2 / math.sqrt(step + 4))
    return {"loss": error_of(net)}
