"""A museum's catalogue: photograph and inventory card together tell the period and the material of an object."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from corpus.case import program

PERIODS, MATERIALS, SIDE = 4, 3, 12


@dataclass
class Objects:
    photo: Tensor
    card: Tensor
    period: Tensor
    material: Tensor

    def take(self, rows: Tensor) -> Objects:
        return Objects(self.photo[rows], self.card[rows], self.period[rows], self.material[rows])


def catalogue(n: int, seed: int) -> Objects:
    """The grain of the photograph gives the material; card and grain together give the period."""
    g = torch.Generator().manual_seed(seed + 31)
    material = torch.randint(MATERIALS, (n,), generator=g)
    hint = torch.randint(PERIODS, (n,), generator=g)
    along = torch.arange(SIDE).float()
    phase = 6 * torch.rand(n, 1, 1, generator=g)
    angle = 0.4 + 0.7 * material.float()[:, None, None]
    wave = torch.sin(1.6 * (torch.cos(angle) * along[:, None] + torch.sin(angle) * along) + phase)
    photo = wave + 0.8 * torch.randn(n, SIDE, SIDE, generator=g)
    card = torch.randn(n, 10, generator=g)
    card[:, :PERIODS] += 2.5 * nn.functional.one_hot(hint, PERIODS)
    return Objects(photo[:, None], card, (hint + material) % PERIODS, material)


class Museum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eye = nn.Sequential(
            nn.Conv2d(1, 12, 5), nn.CELU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3), nn.CELU(), nn.Flatten(),
            nn.Linear(96, 24), nn.CELU(),
        )  # fmt: skip
        self.reader = nn.Sequential(nn.Linear(10, 24), nn.CELU())
        self.join = nn.Sequential(nn.Linear(48, 64), nn.CELU())
        self.period = nn.Linear(64, PERIODS)
        self.material = nn.Linear(64, MATERIALS)
        self.cut_photo = False

    def forward(self, photo: Tensor, card: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.eye(photo)
        if self.cut_photo:
            seen = seen.detach()
        both = self.join(torch.cat([seen, self.reader(card)], dim=1))
        return self.period(both), self.material(both)


@dataclass
class Curator:
    fault: str
    seed: int
    history: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        stock = catalogue(1300, self.seed)
        self.train, self.held = stock.take(torch.arange(1000)), stock.take(torch.arange(1000, 1300))
        self.model = Museum()
        self.model.cut_photo = self.fault == "museum_photographs_detached"
        if self.fault == "museum_towers_frozen_as_before":
            for name, p in self.model.named_parameters():
                if not name.startswith(("join", "period", "material")):
                    p.requires_grad = False  # in the old project the towers came trained
        self.optimizer = self.new_optimizer()
        if self.fault == "museum_period_head_replaced":
            self.model.period = nn.Linear(64, PERIODS)  # a fifth period was dropped again

    def new_optimizer(self) -> torch.optim.Optimizer:
        parts = [self.model.eye, self.model.reader, self.model.join, self.model.period, self.model.material]
        if self.fault == "museum_join_not_listed":
            parts.remove(self.model.join)
        return torch.optim.Adam([{"params": part.parameters()} for part in parts], lr=2e-3)

    def step(self, number: int) -> None:
        if self.fault == "museum_photographs_cached" and number == 40:
            self.model.cut_photo = True
        batch = self.train.take(torch.randint(1000, (48,)))
        period, material = self.model(batch.photo, batch.card)
        loss = nn.functional.cross_entropy(period, batch.period)
        loss = loss + 0.5 * nn.functional.cross_entropy(material, batch.material)
        self.model.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.history.append(loss.item())

    def accuracy(self) -> float:
        with torch.no_grad():
            period, _ = self.model(self.held.photo, self.held.card)
        return (period.argmax(1) == self.held.period).float().mean().item()


@program(steps=200, bites="accuracy")
def museum(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two towers, two heads, one Adam with a group for each part."""
    curator = Curator(fault, seed)
    parts = {"head": curator.model.period, "join": curator.model.join}
    start = {name: torch.cat([p.detach().flatten() for p in part.parameters()]) for name, part in parts.items()}
    for number in range(steps):
        curator.step(number)
    loss = sum(curator.history[-5:]) / len(curator.history[-5:])
    moved = {
        f"{name}_moved": (torch.cat([p.detach().flatten() for p in part.parameters()]) - start[name]).norm().item()
        for name, part in parts.items()
    }
    return {"loss": loss if math.isfinite(loss) else 1e9, "accuracy": curator.accuracy(), **moved}


museum.mistake(
    "museum_photographs_detached", "GRD003",
    summary="The photograph's features are detached, as for the plot they were once made for.",
    change="remove detach()",
    layers=("eye",),
)  # fmt: skip
museum.mistake(
    "museum_photographs_cached", "GRD003",
    summary="From step 40 on the photograph's features are detached to save time, long before they are any good.",
    change="keep the graph",
    layers=("eye",), onset=40,
)  # fmt: skip
museum.mistake(
    "museum_towers_frozen_as_before", "UPD003",
    summary="Both towers are frozen as in the old project, where they came trained; here they are random.",
    change="freeze nothing",
    layers=("eye", "reader"),
)  # fmt: skip
museum.mistake(
    "museum_join_not_listed", "UPD003",
    summary="The list of the optimizer's groups forgets the layer that joins the towers.",
    change="add a group for it",
    layers=("join",),
)  # fmt: skip
museum.mistake(
    "museum_period_head_replaced", "UPD003",
    summary="The head for the period is replaced after the optimizer was built, which goes on with the old one.",
    change="build the optimizer last",
    layers=("period",),
    bites="head_moved", silent=True,
)  # fmt: skip


@program(steps=180, bites="accuracy", adversarial="a head without gradient is disconnected: its turn comes later")
def museum_periods_later(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The material alone for the first third, because the periods are still being catalogued; then both."""
    curator = Curator("", seed)
    model, optimizer = curator.model, torch.optim.AdamW(curator.model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for number in range(steps):
        batch = curator.train.take(torch.randint(1000, (48,)))
        period, material = model(batch.photo, batch.card)
        loss = nn.functional.cross_entropy(material, batch.material)
        if number >= steps // 3:
            loss = loss + nn.functional.cross_entropy(period, batch.period)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": curator.accuracy()}


@program(steps=180, bites="accuracy")
def museum_lost_cards(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One card in five is lost on purpose, labels are smoothed, and the rate warms up and falls on a line."""
    curator = Curator("", seed)
    model, optimizer = curator.model, torch.optim.AdamW(curator.model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    shape = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 20, max(0.05, 1 - n / 200)))
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = curator.train.take(torch.randint(1000, (48,)))
        kept = (torch.rand(48, 1) > 0.2).float()
        period, _ = model(batch.photo, batch.card * kept)
        _, material = model(batch.photo, batch.card)
        loss = nn.functional.cross_entropy(period, batch.period, label_smoothing=0.05)
        loss = loss + 0.5 * nn.functional.cross_entropy(material, batch.material, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shape.step()
    return {"loss": loss.item(), "accuracy": curator.accuracy()}


@program(
    steps=180,
    bites="accuracy",
    adversarial="gradients of wildly different size among layers: two towers, two optimizers",
)
def museum_towers_by_turns(steps: int, seed: int, fault: str) -> dict[str, float]:
    """SGD for the eye and Adam for the rest, one after the other: in every step one of them stands still."""
    curator = Curator("", seed)
    model = curator.model
    rest = [p for name, p in model.named_parameters() if not name.startswith("eye")]
    optimizers = [torch.optim.SGD(model.eye.parameters(), lr=0.05, momentum=0.9), torch.optim.Adam(rest, lr=3e-3)]
    loss = torch.tensor(0.0)
    for number in range(steps):
        batch = curator.train.take(torch.randint(1000, (64,)))
        period, material = model(batch.photo, batch.card)
        loss = nn.functional.cross_entropy(period, batch.period)
        loss = loss + nn.functional.cross_entropy(material, batch.material)
        model.zero_grad()
        loss.backward()
        optimizers[number % 2].step()
    return {"loss": loss.item(), "accuracy": curator.accuracy()}
