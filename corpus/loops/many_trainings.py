"""Several trainings in one process: members of an ensemble, sweeps, folds, and two that take turns."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program


def harvest(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What a field yields by sun, rain, soil and five things that do not matter."""
    x = torch.randn(count, 8, generator=generator)
    y = torch.tanh(2 * x[:, 0]) * (1 + x[:, 1]) + (x[:, 2] * x[:, 1]).clamp(-2, 2)
    return x, (y + 0.1 * torch.randn(count, generator=generator))[:, None]


def unseen_error(net: nn.Module) -> float:
    x, y = harvest(800, torch.Generator().manual_seed(4242))
    net.eval()
    with torch.no_grad():
        error = functional.mse_loss(net(x), y).item()
    net.train()
    return min(error, 5.0) if math.isfinite(error) else 5.0


class Member(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(8, width)
        self.deeper = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(functional.elu(self.deeper(functional.elu(self.hidden(x)))))


class Committee(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(Member(24 + 8 * which) for which in range(size))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


@program(steps=250, bites="worst")
def harvest_committee(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Five members, each with its own optimizer and its own batches."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    committee = Committee(5)
    optimizers: list[torch.optim.Optimizer] = []
    for which, member in enumerate(committee.members):
        if which == 3 and mistake == "harvest_committee_copied_member":
            member = committee.members[2]
        rate = 3e-7 if which == 1 and mistake == "harvest_committee_shy_member" else 3e-3
        optimizers.append(torch.optim.Adam(member.parameters(), lr=rate))
    for _ in range(steps):
        for member in committee.members:
            member.zero_grad()
        losses: list[Tensor] = []
        for member in committee.members:
            x, y = harvest(48, generator)
            losses.append(functional.mse_loss(member(x), y))
        torch.stack(losses).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    return {"worst": max(unseen_error(member) for member in committee.members)}


harvest_committee.mistake(
    "harvest_committee_copied_member",
    "UPD003",
    layers=("members.3",),
    summary="The fourth optimizer was given the third member.",
    change="each optimizer has its own member",
)
harvest_committee.mistake(
    "harvest_committee_shy_member",
    "UPD002",
    "OPT007",
    layers=("members.1",),
    summary="The second member learns ten thousand times more slowly than the others.",
    change="one rate for all",
)


@program(steps=600, bites="worst")
def harvest_sweep(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Three learning rates, one after the other, each from new weights."""
    rates = [0.01, 0.03, 0.06]
    if mistake == "harvest_sweep_slipped_point":
        rates[2] = 6.0
    errors: list[float] = []
    for rate in rates:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed + 1)
        net = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
        for _ in range(max(1, steps // len(rates))):
            x, y = harvest(64, generator)
            loss = functional.mse_loss(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        errors.append(unseen_error(net))
    return {"best": min(errors), "worst": max(errors)}


harvest_sweep.mistake(
    "harvest_sweep_slipped_point",
    "OPT007",
    "UPD001",
    "OPT001",
    onset=400,
    summary="The last rate of the sweep lost its decimal places.",
    change="0.06",
)


@program(steps=480, bites="mean")
def harvest_folds(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Four folds, each of which is left out once by a network of its own."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    x, y = harvest(1200, generator)
    net = Member(40)
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    folds = torch.randperm(len(x), generator=generator).chunk(4)
    errors: list[float] = []
    for which, held in enumerate(folds):
        if which > 0:
            net = Member(40)
            if mistake != "harvest_folds_kept_line":
                optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
        rest = torch.cat([fold for other, fold in enumerate(folds) if other != which])
        for _ in range(max(1, steps // len(folds))):
            rows = rest[torch.randint(0, len(rest), (64,), generator=generator)]
            loss = functional.mse_loss(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            errors.append(functional.mse_loss(net(x[held]), y[held]).item())
    return {"mean": sum(errors) / len(errors)}


harvest_folds.mistake(
    "harvest_folds_kept_line",
    "UPD003",
    onset=120,
    summary="From the second fold on the network is new, and the optimizer still the first network's.",
    change="a new optimizer for each fold",
)  # no layers: which name a later network of the same variable gets is a matter of taste


@healthy(steps=500, adversarial="two networks take turns, and their losses are a million times apart")
def harvest_in_turns(steps: int, seed: int) -> dict[str, float]:
    """Two unrelated trainings share a loop: yields in tonnes, and prices in cents."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    yields = Member(32)
    prices = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    slow = torch.optim.SGD(yields.parameters(), lr=0.02, momentum=0.9)
    quick = torch.optim.Adam(prices.parameters(), lr=1e-2)
    for step in range(steps):
        x, y = harvest(64, generator)
        if step % 2 == 0:
            slow.zero_grad()
            functional.mse_loss(yields(x), y).backward()
            slow.step()
        else:
            wanted = 500 * (x[:, :1] + x[:, 3:4].relu())
            quick.zero_grad()
            functional.mse_loss(500 * prices(x), wanted).backward()
            quick.step()
    return {"loss": unseen_error(yields)}


@healthy(steps=400, adversarial="a rate of 40 and one of 2e-6, both right for the units of their losses")
def harvest_units(steps: int, seed: int) -> dict[str, float]:
    """The same training twice: once the loss is in thousandths, once in thousands."""
    errors: list[float] = []
    for scale, rate in ((1e-3, 40.0), (2e4, 2e-6)):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed + 1)
        net = Member(32)
        optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.5)
        for _ in range(max(1, steps // 2)):
            x, y = harvest(64, generator)
            optimizer.zero_grad()
            (scale * functional.mse_loss(net(x), y)).backward()
            optimizer.step()
        errors.append(unseen_error(net))
    return {"loss": max(errors)}


@healthy(steps=450, adversarial="every hundred steps or so a new network begins where the old loss was low")
def harvest_boosting(steps: int, seed: int) -> dict[str, float]:
    """Small networks one after the other, each of which learns what the earlier ones leave."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    done: list[nn.Module] = []
    for _ in range(3):
        net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 1))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(max(1, steps // 3)):
            x, y = harvest(96, generator)
            with torch.no_grad():
                left = y - sum((0.8 * earlier(x) for earlier in done), torch.zeros_like(y))
            loss = functional.mse_loss(net(x), left)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        done.append(net)
    x, y = harvest(800, generator)
    with torch.no_grad():
        return {"loss": functional.mse_loss(sum((0.8 * net(x) for net in done), torch.zeros_like(y)), y).item()}


@healthy(steps=300, adversarial="one optimizer, three networks that never meet, of which one is done early")
def harvest_side_by_side(steps: int, seed: int) -> dict[str, float]:
    """Three separate questions about the same fields, trained by one optimizer over the sum of losses."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    nets = nn.ModuleDict({"amount": Member(32), "sunny": nn.Linear(8, 1), "rank": Member(16)})
    optimizer = torch.optim.Adam(nets.parameters(), lr=4e-3)
    for _ in range(steps):
        x, y = harvest(64, generator)
        amount = functional.mse_loss(nets["amount"](x), y)
        sunny = functional.mse_loss(nets["sunny"](x), 0.3 * x[:, :1] + 0.1)
        rank = functional.soft_margin_loss(nets["rank"](x), (y > 0.5).float() * 2 - 1)
        optimizer.zero_grad()
        (amount + sunny + rank).backward()
        optimizer.step()
    return {"loss": unseen_error(nets["amount"])}
