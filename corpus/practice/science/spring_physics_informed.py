"""A damped spring from its equation alone: the network's own derivatives are in the loss."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from corpus.case import program

DAMPING, STIFFNESS, UNTIL = 0.4, 4.0, 3.0


def exact(t: Tensor) -> Tensor:
    """Displacement with x(0) = 1 and x'(0) = 0."""
    omega = math.sqrt(STIFFNESS - DAMPING**2)
    return torch.exp(-DAMPING * t) * (torch.cos(omega * t) + DAMPING / omega * torch.sin(omega * t))


def build(widths: tuple[int, ...] = (1, 32, 32, 1)) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def grad(y: Tensor, t: Tensor) -> Tensor:
    return torch.autograd.grad(y.sum(), t, create_graph=True)[0]


def physics(net: nn.Module, t: Tensor) -> Tensor:
    x = net(t)
    v = grad(x, t)
    return (grad(v, t) + 2 * DAMPING * v + STIFFNESS * x).square().mean()


def start(net: nn.Module) -> Tensor:
    zero = torch.zeros(1, 1, requires_grad=True)
    x = net(zero)
    return (x - 1).square().mean() + grad(x, zero).square().mean()


@torch.no_grad()
def deviation(net: nn.Module, unit: float = 1.0) -> float:
    t = torch.linspace(0, UNTIL, 100)[:, None]
    return (net(t * unit) - exact(t)).square().mean().sqrt().nan_to_num(1e6).item()


@program(steps=150, bites="deviation")
def spring_from_its_equation(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Random times in each step; a few measured points help."""
    torch.manual_seed(seed)
    net = build()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    unit = 1000.0 if fault == "time_in_milliseconds" else 1.0
    weight = 2000.0 if fault == "equation_outshouts_the_data" else 0.05
    measured_t = UNTIL * torch.rand(40, 1)
    measured_x = exact(measured_t) + 0.02 * torch.randn(40, 1)
    for step in range(steps):
        if fault == "rate_up_instead_of_down" and step == 80:
            opt.param_groups[0]["lr"] *= 100  # meant: divided by
        t = (UNTIL * torch.rand(64, 1)).mul(unit).requires_grad_()
        fit = (net(measured_t * unit) - measured_x).square().mean()
        loss = weight * physics(net, t) + 0.1 * start(net) + fit
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"deviation": deviation(net, unit)}


spring_from_its_equation.mistake(
    "time_in_milliseconds",
    "DAT001", "ACT002",
    summary="Time goes in as milliseconds: every unit of the first layer is at its limit.",
    change="seconds",
    layers=("0", "1"),
)  # fmt: skip
spring_from_its_equation.mistake(
    "equation_outshouts_the_data",
    "GRD009", "OPT005",
    summary="The equation weighs 2,000 in the loss: rest, which solves it too, is what the network learns.",
    change="a weight of 0.05",
)  # fmt: skip
spring_from_its_equation.mistake(
    "rate_up_instead_of_down",
    "OPT007", "UPD001", "OPT001", "OPT003",
    summary="The rate is multiplied by 100 half-way; it was to be divided.",
    change="divide it",
    onset=80,
)  # fmt: skip


@program(steps=40, bites="deviation", adversarial="one backward pass for each step of the optimizer")
def spring_by_lbfgs(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """L-BFGS with a line search evaluates the loss many times in a step."""
    torch.manual_seed(seed)
    net = build((1, 24, 24, 1))
    t = torch.linspace(0, UNTIL, 60)[:, None].requires_grad_()
    x = exact(t).detach()
    opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        opt.zero_grad()
        loss = 0.05 * physics(net, t) + 0.1 * start(net) + (net(t) - x).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        opt.step(closure)
    return {"deviation": deviation(net)}


@program(steps=150, bites="deviation", adversarial="a loss that jumps up has diverged")
def spring_by_curriculum(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The interval grows in three stages: the loss jumps at each of them and falls again."""
    torch.manual_seed(seed)
    net = build()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(steps):
        until = UNTIL * (1 + 3 * step // steps) / 3
        t = (until * torch.rand(64, 1)).requires_grad_()
        fit = (net(t) - exact(t.detach())).square().mean()
        loss = fit + 0.02 * physics(net, t)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"deviation": deviation(net)}


@program(steps=120, bites="deviation")
def spring_in_doubles(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Everything in double precision with RAdam."""
    torch.manual_seed(seed)
    net = build().double()
    opt = torch.optim.RAdam(net.parameters(), lr=2e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        t = (UNTIL * torch.rand(64, 1, dtype=torch.float64)).requires_grad_()
        loss = (net(t) - exact(t.detach())).square().mean() + 0.01 * physics(net, t)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"deviation": deviation(net.float()), "loss": loss.item()}
