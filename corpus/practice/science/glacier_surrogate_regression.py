"""Surrogates for a glacier model: from slope, thickness and warmth to a profile of ice speeds. Plain scripts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

INPUTS, PROFILE = 8, 12


def ice(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """The speed at twelve depths: smooth, and not linear in anything."""
    g = torch.Generator().manual_seed(31 + seed)
    x = torch.rand(count, INPUTS, generator=g) * 2 - 1
    depth = torch.linspace(0, 1, PROFILE)
    slope, thick, warm = x[:, :1] + 0.5 * x[:, 3:4], x[:, 1:2] * x[:, 4:5], torch.sin(3 * x[:, 2:3])
    speed = (1 - depth**3) * (slope + thick) + warm * torch.cos(4 * depth) + 0.3 * x[:, 5:6].abs() * depth
    return x, speed + 0.05 * torch.randn(count, PROFILE, generator=g)


class Surrogate(nn.Module):
    def __init__(self, width: int = 64, act: type[nn.Module] = nn.ELU) -> None:
        super().__init__()
        self.lift = nn.Linear(INPUTS, width)
        self.flow = nn.Sequential(act(), nn.Linear(width, width), act(), nn.Linear(width, width), act())
        self.bed = nn.Linear(width, PROFILE)

    def forward(self, x: Tensor) -> Tensor:
        return self.bed(self.flow(self.lift(x)))


def check(model: nn.Module, seed: int) -> float:
    x, y = ice(seed + 500, 400)
    with torch.no_grad():
        error = (model(x) - y).square().mean().item()
    return error if error < 100 else 100.0  # also when it is not a number


@program(steps=160)
def glacier_speeds(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adam at 3e-3, mean squared error, batches of 64."""
    torch.manual_seed(seed)
    x, y = ice(seed, 2000)
    net = Surrogate()
    lr = 3e-3
    if fault == "glacier_rate_copied_from_sgd":
        lr = 0.4
    if fault == "glacier_rate_of_a_glacier":
        lr = 3e-6
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    for step in range(steps):
        if fault == "glacier_second_stage_hot" and step == 100:
            for group in opt.param_groups:
                group["lr"] = 0.3  # stage two of the config: 3e-1 where 3e-4 was meant
        rows = torch.randint(2000, (64,))
        loss = (net(x[rows]) - y[rows]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": check(net, seed)}


glacier_speeds.mistake(
    "glacier_rate_copied_from_sgd",
    "OPT007", "UPD001", "OPT001", "OPT004",
    summary="Adam with a rate of 0.4, left over from plain descent.",
    change="3e-3",
)  # fmt: skip
glacier_speeds.mistake(
    "glacier_rate_of_a_glacier",
    "OPT007", "UPD002", "OPT005",
    summary="A rate of 3e-6: the loss hardly moves in the whole run.",
    change="3e-3",
)  # fmt: skip
glacier_speeds.mistake(
    "glacier_second_stage_hot",
    "OPT007", "UPD001", "OPT003", "OPT001", "GRD006",
    summary="The second stage begins at step 100 with a rate a hundred times as high as before, not ten times lower.",
    change="3e-4",
    onset=100,
)  # fmt: skip


@program(steps=180)
def glacier_by_momentum(steps: int, seed: int, fault: str) -> dict[str, float]:
    """SGD with momentum and polynomial decay over the epochs."""
    torch.manual_seed(seed)
    x, y = ice(seed + 40, 1440)
    net = Surrogate(act=nn.Tanh)
    opt = torch.optim.SGD(net.parameters(), lr=3.0 if fault == "glacier_calving" else 0.2, momentum=0.9)
    epochs = max(steps // 30, 1)
    decay = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=epochs + 2, power=1.0)
    for step in range(steps):
        rows = torch.randint(1440, (48,))
        loss = (net(x[rows]) - y[rows]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if fault == "glacier_melts_in_eight_batches" or step % 30 == 29:
            decay.step()
    return {"loss": check(net, seed + 40)}


glacier_by_momentum.mistake(
    "glacier_melts_in_eight_batches",
    "OPT007", "UPD002", "OPT005", "OPT002",
    summary="Polynomial decay over eight epochs is stepped with every batch: the rate is zero from the ninth batch on.",
    change="decay.step() at the end of an epoch",
)  # fmt: skip
glacier_by_momentum.mistake(
    "glacier_calving",
    "OPT007", "UPD001", "OPT001", "GRD002", "NUM002", "NUM001", "NUM003", "NUM004",
    summary="Momentum SGD at a rate of 3.0: the loss runs away within a few steps.",
    change="0.2",
)  # fmt: skip


@program(
    steps=160, adversarial="large gradients explode: speeds are in metres per year and the last layer carries the unit"
)
def glacier_metres_per_year(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Targets times 200, standardised inside the loss by a Huber threshold in the same unit."""
    torch.manual_seed(seed)
    x, y = ice(seed + 60, 2000)
    y = y * 200
    net = Surrogate()
    scale = y.std(0)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(2000, (64,))
        loss = nn.functional.huber_loss(net(x[rows]) * scale, y[rows], delta=200.0)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(
    steps=200,
    adversarial="a loss that goes up and down is a rate too high: full-batch descent at the edge of stability",
)
def glacier_full_batch(steps: int, seed: int, fault: str) -> dict[str, float]:
    """All data in every step, plain gradient descent at a bold rate."""
    torch.manual_seed(seed)
    x, y = ice(seed + 80, 400)
    net = Surrogate(act=nn.Tanh)
    opt = torch.optim.SGD(net.parameters(), lr=0.6)
    for _ in range(steps):
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": check(net, seed + 80)}


@program(steps=160, adversarial="rates that jump up are mistakes: warm restarts do so every forty steps")
def glacier_seasons(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Cosine annealing with warm restarts, AdamW."""
    torch.manual_seed(seed)
    x, y = ice(seed + 90, 2000)
    net = Surrogate(act=nn.Mish)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
    seasons = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=40, eta_min=1e-5)
    for _ in range(steps):
        rows = torch.randint(2000, (64,))
        loss = (net(x[rows]) - y[rows]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        seasons.step()
    return {"loss": check(net, seed + 90)}


@program(steps=60)
def glacier_second_order(steps: int, seed: int, fault: str) -> dict[str, float]:
    """L-BFGS with a closure on a small sample."""
    torch.manual_seed(seed)
    x, y = ice(seed + 95, 300)
    net = Surrogate(24, nn.Tanh)
    opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, history_size=10)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = (net(x) - y).pow(2).mean() + 1e-4 * sum(p.square().sum() for p in net.parameters())
        loss.backward()
        return loss

    for _ in range(steps):
        opt.step(closure)  # pyright: ignore[reportArgumentType]
    return {"loss": check(net, seed + 95)}


@program(steps=160)
def glacier_in_two_speeds(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two optimizers in one loop: Adagrad for the lift, Adamax for the rest; a mean absolute error."""
    torch.manual_seed(seed)
    x, y = ice(seed + 97, 2000)
    net = Surrogate()
    lift = torch.optim.Adagrad(net.lift.parameters(), lr=0.02)
    rest = torch.optim.Adamax([*net.flow.parameters(), *net.bed.parameters()], lr=5e-3)
    for _ in range(steps):
        rows = torch.randint(2000, (64,))
        loss = (net(x[rows]) - y[rows]).abs().mean()
        net.zero_grad()
        loss.backward()
        lift.step()
        rest.step()
    return {"loss": check(net, seed + 97)}
