"""Where is the hand of a robot arm with three joints? Layers written by hand, a class for the whole experiment."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from corpus.case import program

LENGTHS = (1.0, 0.8, 0.5)


def arm(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Joint angles in radians and the place of the hand, which is mostly left of and below the shoulder."""
    angles = (torch.rand(n, 3, generator=g) - 0.5) * 2.4
    total = angles.cumsum(1) + 1.2 * math.pi
    reach = torch.tensor(LENGTHS)
    return angles, torch.stack([(reach * total.cos()).sum(1), (reach * total.sin()).sum(1)], dim=1)


class Dense(nn.Module):
    """A layer as the lecture writes it on the blackboard."""

    def __init__(self, n_in: int, n_out: int, act: Callable[[Tensor], Tensor] | None, value: float | None = None):
        super().__init__()
        weight = torch.randn(n_in, n_out) / n_in**0.5 if value is None else torch.full((n_in, n_out), value)
        self.W = nn.Parameter(weight)
        self.b = nn.Parameter(torch.zeros(n_out))
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        z = x @ self.W + self.b
        return self.act(z) if self.act else z


class Arm(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        value = 0.04 if fault == "reach_all_weights_equal" else None
        self.inner = Dense(3, 48, torch.tanh, value)
        self.middle = Dense(48, 48, torch.tanh, value)
        self.outer = Dense(48, 2, torch.relu if fault == "reach_never_negative" else None, value)

    def forward(self, angles: Tensor) -> Tensor:
        return self.outer(self.middle(self.inner(angles)))


class Experiment:
    def __init__(self, seed: int, fault: str) -> None:
        torch.manual_seed(seed)
        self.g = torch.Generator().manual_seed(seed + 7)
        self.angles, self.hand = arm(2000, self.g)
        if fault == "reach_in_degrees":
            self.angles = torch.rad2deg(self.angles)
        self.net = Arm(fault)
        self.optim = torch.optim.Adam(self.net.parameters(), lr=4e-3)

    def epoch(self, batches: int) -> float:
        value = 0.0
        for _ in range(batches):
            rows = torch.randint(1600, (50,), generator=self.g)
            self.optim.zero_grad()
            loss = ((self.net(self.angles[rows]) - self.hand[rows]) ** 2).mean()
            loss.backward()
            self.optim.step()
            value = loss.item()
        return value

    def held_out(self) -> float:
        with torch.no_grad():
            return ((self.net(self.angles[1600:]) - self.hand[1600:]) ** 2).mean().item()


@program(steps=180, bites="error")
def reach(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two tanh layers learn the geometry of the arm from random poses."""
    experiment = Experiment(seed, fault)
    loss = experiment.epoch(steps)
    return {"loss": loss, "error": experiment.held_out()}


reach.mistake(
    "reach_in_degrees",
    "DAT001", "ACT002",
    summary="The joint angles come in degrees: the first tanh is saturated in nearly every pose.",
    change="radians",
    layers=("inner",),
)  # fmt: skip
reach.mistake(
    "reach_never_negative",
    "ACT001",
    "GRD004",
    "LSS003",
    summary="The last layer has a ReLU like the others in the exercise, but the hand is mostly at negative places.",
    change="no activation at the end",
    layers=("outer",),
)
reach.mistake(
    "reach_all_weights_equal",
    "WGT002",
    summary="Every weight of every layer starts at 0.04: all units of a layer stay the same unit.",
    change="random weights",
    layers=("inner", "middle", "outer"),
)


@program(steps=150, bites="error", adversarial="a layer whose gradient is exactly zero at the start is dead")
def reach_corrects_a_formula(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The net only corrects a rough formula, and its last layer starts at zero so that the formula comes first."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 7)
    angles, hand = arm(2000, g)
    bent = hand + 0.2 * torch.stack([angles[:, 1] ** 2, torch.sin(3 * angles[:, 2])], dim=1)
    net = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 2))
    nn.init.zeros_(net[4].weight)  # pyright: ignore[reportArgumentType]
    nn.init.zeros_(net[4].bias)  # pyright: ignore[reportArgumentType]
    optim = torch.optim.Adam(net.parameters(), lr=5e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1600, (64,), generator=g)
        optim.zero_grad()
        loss = nn.functional.mse_loss(hand[rows] + net(angles[rows]), bent[rows])
        loss.backward()
        optim.step()
    with torch.no_grad():
        error = nn.functional.mse_loss(hand[1600:] + net(angles[1600:]), bent[1600:]).item()
    return {"loss": loss.item(), "error": error}


@program(steps=150, bites="error", adversarial="a loss in the thousands is exploding")
def reach_in_centimetres(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The arm in centimetres, the error summed over the batch: large numbers, and Adam does not mind."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 7)
    angles, hand = arm(2000, g)
    scale = 100 * hand.std()
    net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optim = torch.optim.Adam(net.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1600, (64,), generator=g)
        optim.zero_grad()
        loss = ((net(angles[rows]) * scale - 100 * hand[rows]) ** 2).sum()
        loss.backward()
        optim.step()
    with torch.no_grad():
        error = ((net(angles[1600:]) * scale / 100 - hand[1600:]) ** 2).mean().item()
    return {"loss": loss.item() / 64, "error": error}
