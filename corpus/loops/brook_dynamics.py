"""Currents of a brook: networks that are differential equations, and layers that are defined by a balance."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program

Flow = Callable[[Tensor], Tensor]


def runge_kutta(flow: Flow, x: Tensor, span: float, pieces: int) -> list[Tensor]:
    """The places that a point passes, in equal pieces of time."""
    width = span / pieces
    passed = [x]
    for _ in range(pieces):
        a = flow(x)
        b = flow(x + width / 2 * a)
        c = flow(x + width / 2 * b)
        d = flow(x + width * c)
        x = x + width / 6 * (a + 2 * b + 2 * c + d)
        passed.append(x)
    return passed


def true_current(x: Tensor) -> Tensor:
    turned = torch.stack([-x[:, 1], x[:, 0]], 1)
    return 1.5 * turned - 0.3 * x * x.norm(dim=1, keepdim=True)


class Current(nn.Module):
    def __init__(self, hidden: int = 48) -> None:
        super().__init__()
        self.first = nn.Linear(2, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.third = nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Lion(torch.optim.Optimizer):
    """The sign of a blend of gradients."""

    def __init__(self, params: list[nn.Parameter], lr: float, fresh: float = 0.1, slow: float = 0.02) -> None:
        super().__init__(params, {"lr": lr, "fresh": fresh, "slow": slow})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                weight.sub_(mean.lerp(weight.grad, group["fresh"]).sign_(), alpha=group["lr"])
                mean.lerp_(weight.grad, group["slow"])


@program(steps=220, bites="error")
def brook_orbit(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """The current is learned from the paths of floating leaves, through the integrator."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    current = Current()
    if mistake == "brook_orbit_wild":
        for weight in current.parameters():
            nn.init.normal_(weight, std=1.5)
    schedule: list[float] = [2e-3] * 150 + [5e-4] * max(0, steps - 150)
    optimizer = Lion(list(current.parameters()), lr=2e-3)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = schedule[step]
        if mistake == "brook_orbit_reversed_list" and step >= 150:
            optimizer.param_groups[0]["lr"] = 5e-2
        start = torch.randn(48, 2, generator=generator)
        with torch.no_grad():
            wanted = torch.stack(runge_kutta(true_current, start, 1.5, 8))
        made = torch.stack(runge_kutta(current, start, 1.5, 8))
        loss = functional.mse_loss(made, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    start = torch.randn(400, 2, generator=torch.Generator().manual_seed(17))
    with torch.no_grad():
        error = (current(start) - true_current(start)).norm(dim=1).mean().item()
    return {"error": min(error, 10.0) if math.isfinite(error) else 10.0}


brook_orbit.mistake(
    "brook_orbit_wild",
    "WGT003",
    "GRD002",
    summary="All weights of the current start from a normal distribution of width 1.5.",
    change="torch's own initialisation",
)
brook_orbit.mistake(
    "brook_orbit_reversed_list",
    "OPT007",
    "UPD001",
    "OPT001",
    onset=150,
    summary="In its second phase the rate is twenty-five times higher instead of four times lower.",
    change="0.0005 in the second phase",
)


class Balance(nn.Module):
    """z = tanh(W z + U x + b), solved by repeating; the gradient is that of one last repetition."""

    def __init__(self, inputs: int, width: int, finish: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(inputs, width)
        self.finish = finish
        with torch.no_grad():
            self.inner.weight.mul_(0.5)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.zeros(len(x), self.inner.in_features)
        with torch.no_grad():
            for _ in range(25):
                z = torch.tanh(self.inner(z) + self.outer(x))
        if self.finish:
            z = torch.tanh(self.inner(z) + self.outer(x))
        return z


class Gauge(nn.Module):
    def __init__(self, finish: bool) -> None:
        super().__init__()
        self.balance = Balance(5, 40, finish)
        self.read = nn.Linear(40, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.balance(x))


def levels(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 5, generator=generator)
    y = torch.sin(2 * x[:, :1]) * x[:, 1:2] + (x[:, 2:3] - x[:, 3:4]).abs()
    return x, y


@program(steps=400, bites="error")
def brook_balance(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A layer whose output is the balance of a recurrence."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    net = Gauge(finish=mistake != "brook_balance_settled")
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for step in range(steps):
        x, y = levels(96, generator)
        loss = functional.mse_loss(net(x), y)
        if mistake == "brook_balance_relative" and step >= 250:
            loss = loss + 0.1 * ((net(x) - y) / y.clamp(min=0.0)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, y = levels(600, generator)
    with torch.no_grad():
        error = functional.mse_loss(net(x), y).item()
    return {"error": min(error, 10.0) if math.isfinite(error) else 10.0}


brook_balance.mistake(
    "brook_balance_settled",
    "GRD003",
    layers=("balance",),
    summary="The balance is found without gradients, and no last repetition has them either.",
    change="one more repetition with gradients",
)
brook_balance.mistake(
    "brook_balance_relative",
    "NUM002",
    onset=250,
    summary="From step 250 on the error counts in proportion to the level, too, and some levels are zero.",
    change="without that term",
)


@healthy(steps=260, adversarial="the loss is made of derivatives of the output, and gradients of gradients")
def brook_steady_heat(steps: int, seed: int) -> dict[str, float]:
    """A network that satisfies u'' = -sin(x), with both ends held at zero."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    ends = torch.tensor([[0.0], [math.pi]])
    for _ in range(steps):
        x = (torch.rand(64, 1) * math.pi).requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        loss = (bend + x.sin()).square().mean() + 5 * net(ends).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x = torch.linspace(0, math.pi, 100)[:, None]
    with torch.no_grad():
        return {"loss": (net(x) - x.sin()).square().mean().item()}


@healthy(steps=200, adversarial="one step calls the closure many times, and every loss is far below the last")
def brook_second_order(steps: int, seed: int) -> dict[str, float]:
    """L-BFGS with a line search on all data at once."""
    torch.manual_seed(seed)
    x, y = levels(300, torch.Generator().manual_seed(seed + 1))
    net = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 1))
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = functional.mse_loss(net(x), y) + 1e-4 * sum(
            (w.square().sum() for w in net.parameters()), torch.zeros(())
        )
        loss.backward()
        return loss.item()

    for _ in range(steps):
        optimizer.step(closure)
    return {"loss": functional.mse_loss(net(x), y).item()}


@healthy(steps=600, adversarial="gradients are taken at weights that are moved up first and put back afterwards")
def brook_sharpness_aware(steps: int, seed: int) -> dict[str, float]:
    """Two backward passes for each step: up to the worst point near by, and back with the gradient found there."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    net = nn.Sequential(nn.Linear(5, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    weights: list[Tensor] = list(net.parameters())
    for _ in range(steps):
        x, y = levels(64, generator)
        slopes = torch.autograd.grad(functional.mse_loss(net(x), y), weights)
        size = torch.stack([slope.norm() for slope in slopes]).norm() + 1e-12
        climbs = [0.03 * slope / size for slope in slopes]
        with torch.no_grad():
            torch._foreach_add_(weights, climbs)  # pyright: ignore[reportPrivateImportUsage]
        optimizer.zero_grad()
        functional.mse_loss(net(x), y).backward()
        with torch.no_grad():
            torch._foreach_sub_(weights, climbs)  # pyright: ignore[reportPrivateImportUsage]
        optimizer.step()
    x, y = levels(600, generator)
    with torch.no_grad():
        return {"loss": functional.mse_loss(net(x), y).item()}
