"""Temperatures in a stovepipe: a recurrent network reads thirty minutes and says the next one."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

MINUTES, PROBES = 30, 4


def measure(batch: int, g: torch.Generator, winter: bool = False) -> tuple[Tensor, Tensor]:
    """Four probes see one slow wave at different delays; in winter it is faster and stands higher."""
    speed = (0.2 + 0.2 * torch.rand(batch, 1, 1, generator=g)) * (2.2 if winter else 1.0)
    phase = 2 * math.pi * torch.rand(batch, 1, 1, generator=g)
    minute = torch.arange(MINUTES + 1).view(1, -1, 1)
    delay = torch.arange(PROBES).view(1, 1, -1) * 0.6
    wave = torch.sin(speed * minute + phase - delay)
    level = 0.3 * torch.randn(batch, 1, 1, generator=g) + (1.5 if winter else 0.0)
    series = wave + level + 0.05 * torch.randn(wave.shape, generator=g)
    return series[:, :-1], series[:, -1, :1]


class PipeReader(nn.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.gru = nn.GRU(PROBES, hidden, batch_first=True)
        self.say = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(x)
        return self.say(states[:, -1])


def error(model: nn.Module, seed: int, winter: bool = False) -> float:
    x, y = measure(300, torch.Generator().manual_seed(seed + 5000), winter)
    with torch.no_grad():
        value = nn.functional.mse_loss(model(x), y).item()
    return min(value, 1e6) if math.isfinite(value) else 1e6


@program(steps=150)
def stovepipe_forecast(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GRU with SGD, momentum and a one-cycle rate forecasts the first probe."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = PipeReader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=400)
    for step in range(steps):
        x, y = measure(32, g)
        if fault == "pipe_probe_in_millikelvin":
            x = x * torch.tensor([1.0, 1.0, 1000.0, 1.0]) + torch.tensor([0.0, 0.0, 293_000.0, 0.0])
        if fault == "pipe_struck_by_lightning" and 70 <= step < 73:
            y = y + 12.0
        if fault == "pipe_cycle_begun_again" and step == 85:  # continued with the peak of the range test
            cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4.0, total_steps=100)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
    return {"loss": error(model, seed)}


stovepipe_forecast.mistake(
    "pipe_probe_in_millikelvin",
    "DAT001", "ACT002", "OPT005",
    summary="The third probe reports millikelvin above absolute zero, the others standard units.",
    change="the same unit for all probes",
)  # fmt: skip
stovepipe_forecast.mistake(
    "pipe_struck_by_lightning",
    "DAT002", "OPT003", "GRD006", "DAT003", "OPT001", "NUM001", "NUM002",
    summary="For three batches the targets are twelve units too high.",
    change="leave such batches out",
    onset=70,
)  # fmt: skip
stovepipe_forecast.mistake(
    "pipe_cycle_begun_again",
    "OPT007", "UPD001", "OPT003", "OPT001", "GRD006", "GRD002", "NUM001", "NUM002",
    summary="At step 85 a second cycle is begun, with a peak forty times too high.",
    change="go on with the first cycle",
    onset=85,
)  # fmt: skip


@program(steps=170, adversarial="a loss that jumps twentyfold in the middle is a bad batch or a wrong rate")
def stovepipe_winter(steps: int, seed: int, fault: str) -> dict[str, float]:
    """At step 100 winter begins: waves are faster and stand higher. Adam follows within a few steps."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = PipeReader()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98))
    for step in range(steps):
        x, y = measure(32, g, winter=step >= 100)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": error(model, seed, winter=True)}


@program(steps=150, adversarial="a loss with outliers of ten times its median is spiking")
def stovepipe_gusts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Targets with a heavy tail: gusts of wind. The loss is Huber's, the gradient is clipped."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = PipeReader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        x, y = measure(24, g)
        gust = torch.rand(y.shape, generator=g) < 0.02
        y = torch.where(gust, y + 20 * torch.randn(y.shape, generator=g), y)
        loss = nn.functional.huber_loss(model(x), y, delta=0.5)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return {"loss": error(model, seed)}


@program(steps=160, adversarial="a gradient in the thousands explodes")
def stovepipe_summed_in_kelvin(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The error is summed over the batch, in tenths of a kelvin: a loss of a hundred thousand that falls."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = PipeReader()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        x, y = measure(48, g)
        loss = (40 * (model(x) - y)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": error(model, seed)}
