"""The temperature of a rod from the heat equation: a network whose derivatives are trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

LENGTH = 400.0  # millimetres


class Rod(nn.Module):
    def __init__(self, unit: float) -> None:
        super().__init__()
        self.unit = unit
        self.net = nn.Sequential(
            nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
        )

    def forward(self, place: Tensor, time: Tensor) -> Tensor:
        return self.net(torch.stack([place / self.unit, time], -1)).squeeze(-1)  # at fault: rod_in_millimetres


def true_temperature(place: Tensor, time: Tensor) -> Tensor:
    return torch.sin(math.pi * place / LENGTH) * torch.exp(-time)


def residual(model: nn.Module, place: Tensor, time: Tensor) -> Tensor:
    """∂u/∂t − κ ∂²u/∂x², in units in which the solution decays as exp(−t)."""
    u = model(place, time)
    u_t, u_x = torch.autograd.grad(u.sum(), (time, place), create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x.sum(), place, create_graph=True)
    return u_t - (LENGTH / math.pi) ** 2 * u_xx


@program(steps=500, bites="error")
def rod_physics(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Physics-informed network: equation, start and ends are terms of one loss; Adam, the rate falls on a plateau."""
    torch.manual_seed(seed)
    model = Rod(1.0 if mistake == "rod_in_millimetres" else LENGTH)
    weights = {"equation": 1.0, "start": 10.0, "ends": 10.0}
    if mistake == "rod_equation_drowns_the_rest":
        weights["equation"] = 1e6  # at fault: rod_equation_drowns_the_rest
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=60)
    for _ in range(steps):
        place = (LENGTH * torch.rand(96)).requires_grad_()
        time = torch.rand(96).requires_grad_()
        zero = torch.zeros(32)
        start = LENGTH * torch.rand(32)
        edge = LENGTH * torch.randint(2, (32,)).float()
        terms = {
            "equation": residual(model, place, time).square().mean(),
            "start": (model(start, zero) - true_temperature(start, zero)).square().mean(),
            "ends": model(edge, torch.rand(32)).square().mean(),
        }
        loss = torch.stack([weights[name] * term for name, term in terms.items()]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step(loss.item())
    place, time = torch.meshgrid(torch.linspace(0, LENGTH, 21), torch.linspace(0, 1, 11), indexing="ij")
    with torch.no_grad():
        wrong = model(place, time) - true_temperature(place, time)
    return {"error": wrong.square().mean().sqrt().item(), "loss": loss.item()}


rod_physics.mistake(
    "rod_in_millimetres",
    "DAT001",
    "ACT002",
    summary="Places enter the network in millimetres, so that the first tanh is at its limit nearly everywhere.",
    change="places as a share of the length",
)
rod_physics.mistake(
    "rod_equation_drowns_the_rest",
    "GRD009",
    summary="The residual has a weight of a million: a rod of constant temperature satisfies it.",
    change="weights of the same order",
)
