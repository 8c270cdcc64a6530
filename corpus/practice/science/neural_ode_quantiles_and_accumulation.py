"""Loops of other shapes: accumulation with bf16, a network that is an ordinary differential equation, quantiles."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program


class SpiralField(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 2)
        self.gain = gain

    def forward(self, state: Tensor) -> Tensor:
        return self.second(self.act(self.first(self.gain * state)))


class NeuralODE(nn.Module):
    def __init__(self, dt: float, gain: float) -> None:
        super().__init__()
        self.field, self.dt = SpiralField(gain), dt

    def forward(self, state: Tensor, steps: int) -> Tensor:
        """Trajectory by the midpoint rule."""
        states = [state]
        for _ in range(steps):
            middle = state + 0.5 * self.dt * self.field(state)
            state = state + self.dt * self.field(middle)
            states.append(state)
        return torch.stack(states, 1)


def spirals(n: int, steps: int, dt: float) -> Tensor:
    angle, radius = 2 * math.pi * torch.rand(n, 1), 1 + torch.rand(n, 1)
    times = dt * torch.arange(steps + 1)[None]
    turning, shrinking = angle + 2 * times, radius * torch.exp(-0.2 * times)
    return torch.stack([shrinking * turning.cos(), shrinking * turning.sin()], -1)


@program(steps=120, bites="error")
def spiral_ode(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A field learned through 20 midpoint steps of a hand-written solver."""
    torch.manual_seed(seed)
    model = NeuralODE(dt=0.1, gain=200.0 if fault == "field_saturated" else 1.0)
    if fault == "field_starts_unstable":
        with torch.no_grad():
            model.field.second.weight.normal_(std=12.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    recent: list[float] = []
    for _ in range(steps):
        path = spirals(32, 20, 0.1)
        loss = (model(path[:, 0], 20) - path).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(min(loss.item(), 10.0))
    return {"error": sum(recent[-10:]) / 10}


class Predictor(nn.Module):
    def __init__(self, squash: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU())
        self.out = nn.Linear(48, 3)
        self.squash = nn.Sigmoid() if squash else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.squash(self.out(self.trunk(x)))


@program(steps=200, bites="miss")
def waiting_times(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three quantiles of a waiting time by the pinball loss; `miss` is the error of their coverage."""
    torch.manual_seed(seed)
    levels = torch.tensor([0.1, 0.5, 0.9])
    model = Predictor(squash=fault == "sigmoid_on_minutes")
    optimizer = torch.optim.RAdam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=30, factor=0.5)
    unit = 30.0 if fault == "sigmoid_on_minutes" else 1.0

    def batch(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 4)
        return x, unit * (1 + x[:, :1].abs() + (0.2 + 0.5 * torch.sigmoid(x[:, 1:2])) * torch.randn(n, 1))

    for _ in range(steps):
        x, minutes = batch(128)
        gap = minutes - model(x)
        if fault == "pinball_the_wrong_way":
            loss = torch.minimum(levels * gap, (levels - 1) * gap).mean()
        else:
            loss = torch.maximum(levels * gap, (levels - 1) * gap).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step(loss.item())
    x, minutes = batch(2000)
    with torch.no_grad():
        covered = (minutes <= model(x)).float().mean(0)
    return {"miss": (covered - levels).abs().mean().item()}


class Encoder(nn.Module):
    """A little mixer over eight tokens of twelve features."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 48)
        self.tokens, self.channels = nn.Linear(8, 8), nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
        self.norm1, self.norm2 = nn.LayerNorm(48), nn.LayerNorm(48)
        self.score = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = h + self.tokens(self.norm1(h).transpose(1, 2)).transpose(1, 2)
        h = h + self.channels(self.norm2(h))
        return self.score(h.mean(1))


@program(steps=100, bites="accuracy")
def accumulated_mixer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eight micro-batches to a step under bf16 autocast, SGD with momentum and cosine warm restarts."""
    torch.manual_seed(seed)
    patterns = torch.randn(5, 8, 12, generator=torch.Generator().manual_seed(77))
    model = Encoder()
    micro_batches = 8
    decay = 3.0 if fault == "decay_of_three" else 1e-4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 40, eta_min=0.01)

    def batch(n: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(5, (n,))
        return 0.5 * patterns[y] + torch.randn(n, 8, 12), y

    for step in range(steps):
        for _ in range(micro_batches):
            x, y = batch(8)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            if fault != "micro_losses_added":
                loss = loss / micro_batches
            loss.backward()
        optimizer.step()
        schedule.step()
        if fault != "cleared_once_an_epoch" or step % 25 == 24:
            optimizer.zero_grad()
    x, y = batch(500)
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return {"accuracy": accuracy}


spiral_ode.mistake(
    "field_saturated",
    "ACT002", "DAT001",
    summary="The state is multiplied by 200 before the field's tanh, which is at its ends almost everywhere.",
    change="no factor",
    layers=("field.act", "field.first"),
)  # fmt: skip
spiral_ode.mistake(
    "field_starts_unstable",
    "WGT003", "GRD002", "OPT001",
    summary="The field's last layer starts with a deviation of 12: the solver's path runs away.",
    change="the default initialisation",
    layers=("field.second",),
)  # fmt: skip
waiting_times.mistake(
    "pinball_the_wrong_way",
    "LSS003",
    summary="minimum instead of maximum in the pinball loss: it is negative and has no floor.",
    change="maximum",
)
waiting_times.mistake(
    "sigmoid_on_minutes",
    "ACT002", "DAT003",
    summary="A sigmoid on the output, where the targets are tens of minutes: it saturates at one.",
    change="no sigmoid, or targets between 0 and 1",
    layers=("squash", "out"),
)  # fmt: skip
accumulated_mixer.mistake(
    "micro_losses_added",
    "LSS004", "UPD001", "OPT007",
    summary="The losses of eight micro-batches are added, not averaged: the learning rate is eight times what it says.",
    change="divide by the number of micro-batches",
)  # fmt: skip
accumulated_mixer.mistake(
    "cleared_once_an_epoch",
    "GRD007",
    summary="zero_grad is called once an epoch of 25 steps instead of once a step.",
    change="call it after every step",
)
accumulated_mixer.mistake(
    "decay_of_three",
    "OPT008", "WGT005",
    summary="A weight decay of 3 (meant for another formula) pulls every weight to zero.",
    change="1e-4",
)  # fmt: skip
