"""A pendulum is learnt from its own swings: one-step models, forecasts with doubt, and recurrent readers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program


def pendulum_push(state: Tensor, dt: float = 0.1) -> Tensor:
    """One step of a damped pendulum, angle and speed in the last dimension."""
    angle, speed = state.unbind(-1)
    for _ in range(4):
        speed = speed + dt / 4 * (-3 * torch.sin(angle) - 0.1 * speed)
        angle = angle + dt / 4 * speed
    return torch.stack([angle, speed], dim=-1)


def pendulum_starts(count: int, g: torch.Generator, wide: float = 2.5) -> Tensor:
    angle = wide * (2 * torch.rand(count, generator=g) - 1)
    return torch.stack([angle, 4 * torch.rand(count, generator=g) - 2], dim=-1)


def pendulum_film(count: int, length: int, seed: int) -> Tensor:
    """Swings as (count, length, 2)."""
    state, frames = pendulum_starts(count, torch.Generator().manual_seed(seed)), []
    for _ in range(length):
        frames.append(state)
        state = pendulum_push(state)
    return torch.stack(frames, dim=1)


class LogEnergy(nn.Module):
    """The logarithm of the energy, as one more input."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor

    def forward(self, state: Tensor) -> Tensor:
        angle, speed = state.unbind(-1)
        energy = 0.5 * speed**2 + 3 * (1 - angle.cos())
        return torch.cat([state, torch.log(energy + self.floor)[:, None]], dim=-1)


class Forecaster(nn.Module):
    """Where the pendulum goes in five steps, and how sure that is."""

    def __init__(self, floor: float = 1e-2) -> None:
        super().__init__()
        self.energy = LogEnergy(floor)
        self.body = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.mean = nn.Linear(64, 2)
        self.log_var = nn.Linear(64, 2)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(self.energy(state))
        return self.mean(h), self.log_var(h)


@program(steps=240, bites="error", adversarial="a loss below zero has the wrong sign")
def pendulum(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Gaussian likelihood of the place five steps ahead; from step 100 on, pendulums at rest are shown as well."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Forecaster(floor=0.0 if fault == "pendulum_at_rest" else 1e-2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        now = pendulum_starts(64, g)
        if step >= 100:
            now[:6] = 0.0
        later = now
        for _ in range(5):
            later = pendulum_push(later)
        later = later + 0.05 * torch.randn(64, 2, generator=g)
        mean, log_var = model(now)
        if fault == "pendulum_proud_of_doubt":
            loss = 0.5 * ((later - mean).square() * (-log_var).exp() - log_var).mean()
        else:
            loss = 0.5 * ((later - mean).square() * (-log_var).exp() + log_var).mean()
        if fault == "pendulum_pays_for_weight":
            loss = loss - 0.5 * sum(p.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    now = later = pendulum_starts(1000, torch.Generator().manual_seed(12))
    for _ in range(5):
        later = pendulum_push(later)
    with torch.no_grad():
        error = fn.mse_loss(model(now)[0], later).nan_to_num(1e3).clamp(max=1e3).item()
    return {"loss": loss.item(), "error": error}


pendulum.mistake(
    "pendulum_proud_of_doubt",
    "LSS003",
    summary="The log-variance is subtracted in the likelihood: the more the model doubts, the lower the loss.",
    change="+ log_var",
)
pendulum.mistake(
    "pendulum_at_rest",
    "NUM004", "NUM002",
    summary="From step 100 on some pendulums are at rest, and the logarithm of their energy is minus infinity.",
    change="log(energy + 0.01)",
    layers=("energy",),
    onset=100,
)  # fmt: skip
pendulum.mistake(
    "pendulum_pays_for_weight",
    "WGT001", "LSS003",
    summary="The penalty on the weights is subtracted: the larger they are, the lower the loss.",
    change="loss + penalty",
)  # fmt: skip


class EchoReader(nn.Module):
    """A plain recurrent layer of ReLUs: reads a film and says the pendulum's energy at the beginning."""

    def __init__(self, echo: float) -> None:
        super().__init__()
        self.into = nn.Linear(2, 48)
        self.again = nn.Linear(48, 48, bias=False)
        nn.init.orthogonal_(self.again.weight, gain=echo)
        self.say = nn.Linear(48, 1)

    def forward(self, film: Tensor) -> Tensor:
        h = torch.zeros(len(film), 48)
        for frame in film.unbind(1):
            h = torch.relu(self.into(frame) + self.again(h))
        return self.say(h).squeeze(1)


@program(steps=200, bites="error")
def pendulum_echo(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Thirty frames through a recurrent layer of ReLUs that starts orthogonal, Adam and a clip."""
    torch.manual_seed(seed)
    film = pendulum_film(1500, 30, seed)
    energy = 0.5 * film[:, 0, 1] ** 2 + 3 * (1 - film[:, 0, 0].cos())
    goal = (energy - energy.mean()) / energy.std()
    model = EchoReader(echo=2.2 if fault == "pendulum_loud_echo" else 1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    first = 0.0
    for _ in range(steps):
        rows = torch.randint(1200, (48,))
        loss = fn.mse_loss(model(film[rows]), goal[rows])
        optimizer.zero_grad()
        loss.backward()
        if fault != "pendulum_loud_echo":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        first = first or loss.item()
    with torch.no_grad():
        error = fn.mse_loss(model(film[1200:]), goal[1200:]).nan_to_num(1e6).clamp(max=1e6).item()
    return {"first": first, "loss": loss.item(), "error": error}


pendulum_echo.mistake(
    "pendulum_loud_echo",
    "GRD002", "WGT003",
    summary="The recurrent weight starts with a gain of 2.2 and no clip: thirty frames multiply it ten billion times.",
    change="a gain of one",
    layers=("again",),
)  # fmt: skip


@program(steps=250, bites="error", adversarial="full batches whose gradients hardly change are stuck")
def pendulum_whole(steps: int, seed: int, fault: str) -> dict[str, float]:
    """All pairs of frames in every step, gradient descent with momentum."""
    torch.manual_seed(seed)
    film = pendulum_film(60, 8, seed)
    now, change = film[:, :-1].reshape(-1, 2), (film[:, 1:] - film[:, :-1]).reshape(-1, 2) / 0.2
    model = nn.Sequential(nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 2))
    rate = 3.0 if fault == "pendulum_whole_to_and_fro" else 0.1
    momentum = 0.9995 if fault == "pendulum_whole_rolls_on" else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    first = 0.0
    for _ in range(steps):
        loss = fn.huber_loss(model(now), change, delta=0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    return {"first": first, "loss": loss.item(), "error": loss.item()}


pendulum_whole.mistake(
    "pendulum_whole_to_and_fro",
    "OPT007", "OPT004", "GRD005",
    summary="A rate beyond what the curvature bears: the weights are thrown from one side to the other.",
    change="lr=0.1",
)  # fmt: skip


pendulum_whole.mistake(
    "pendulum_whole_rolls_on",
    "OPT008", "OPT004", "OPT007",
    summary="Momentum of 0.9995: the weights roll past every minimum for thousands of steps.",
    change="momentum=0.9",
)  # fmt: skip


@healthy(steps=240, adversarial="a loss that jumps up and stays higher is a spike or diverges")
def pendulum_longer_and_longer(steps: int, seed: int) -> dict[str, float]:
    """A curriculum: the model is rolled out over 1, then 4, 8 and 16 steps; each change lifts the loss."""
    torch.manual_seed(seed)
    film = pendulum_film(400, 17, seed)
    model = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)

    def rolled(horizon: int, rows: Tensor) -> Tensor:
        state, total = film[rows, 0], torch.zeros(())
        for t in range(1, horizon + 1):
            state = state + 0.2 * model(state)
            total = total + fn.mse_loss(state, film[rows, t])
        return total / horizon

    with torch.no_grad():
        before = rolled(16, torch.arange(400)).item()
    for step in range(steps):
        loss = rolled((1, 4, 8, 16)[4 * step // steps], torch.randint(400, (64,)))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        return {"before": before, "after": rolled(16, torch.arange(400)).item(), "loss": loss.item()}
