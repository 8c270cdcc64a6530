"""Old pictures made new: convolutional nets that take away stains, blur and scratches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional

from corpus.case import program

SIDE = 12


def paintings(g: torch.Generator, n: int) -> torch.Tensor:
    """Smooth fields with an edge."""
    coarse = torch.randn(n, 1, 4, 4, generator=g)
    smooth = functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear", align_corners=True)
    angle = torch.rand(n, 1, 1, 1, generator=g) * 6.28
    grid = torch.linspace(-1, 1, SIDE)
    side = (angle.cos() * grid[:, None] + angle.sin() * grid[None]) > 0
    return 0.6 * smooth + side.float() - 0.5


def age(clean: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    blurred = functional.avg_pool2d(clean, 3, 1, 1)
    return blurred + 0.15 * torch.randn(clean.shape, generator=g)


class Contrast(nn.Module):
    """Divide every channel of every picture by its spread, gently where there is none."""

    def __init__(self, eps: float = 1e-4) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean((2, 3), keepdim=True)
        return centred / (0.1 + (centred.square().mean((2, 3), keepdim=True) + self.eps).sqrt())


class Brush(nn.Module):
    def __init__(self, c: int, skip: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1)
        self.norm: nn.Module = nn.GroupNorm(2, c) if skip else nn.Identity()
        self.skip = skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.conv(self.norm(x)))
        return x + y if self.skip else y


class Restorer(nn.Module):
    def __init__(self, depth: int = 14, skip: bool = True, frugal: bool = False) -> None:
        super().__init__()
        self.lift = nn.Conv2d(1, 8, 3, padding=1)
        self.brushes = nn.Sequential(*[Brush(8, skip) for _ in range(depth)])
        self.paint = nn.Conv2d(8, 1, 3, padding=1)
        self.frugal = frugal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.lift(x)
        if self.frugal:
            with torch.no_grad():  # "saves memory"
                h = self.brushes(h)
        else:
            h = self.brushes(h)
        return self.paint(h)


def train(model: nn.Module, opt: optim.Optimizer, steps: int, g: torch.Generator, batch: int = 16) -> float:
    tail: list[float] = []
    for _ in range(steps):
        clean = paintings(g, batch)
        loss = functional.mse_loss(model(age(clean, g)), clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
        tail.append(loss.item())
    return sum(tail[-10:]) / len(tail[-10:])


@program(steps=110)
def restorer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Fourteen normalised residual brushes take away blur and grain."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    settings: dict[str, Any] = {
        "restorer_no_shortcuts": {"skip": False},
        "restorer_saves_memory": {"frugal": True},
    }.get(fault, {})
    model = Restorer(**settings)
    before = torch.cat([p.detach().flatten() for p in model.brushes.parameters()])
    loss = train(model, optim.Adam(model.parameters(), lr=2e-3), steps, g)
    after = torch.cat([p.detach().flatten() for p in model.brushes.parameters()])
    return {"loss": loss, "moved": (after - before).norm().item()}


restorer.mistake(
    "restorer_no_shortcuts",
    "GRD001", "ACT003", "WGT003",
    summary="Fourteen tanh convolutions one after the other: the shortcuts and norms were lost in a rewrite.",
    change="put back the shortcuts",
)  # fmt: skip
restorer.mistake(
    "restorer_saves_memory",
    "GRD003", "UPD003",
    summary="The brushes run under no_grad 'to save memory': neither they nor the first layer learn.",
    change="remove no_grad",
    layers=("brushes", "lift"),
    bites="moved",
    silent=True,
)  # fmt: skip


class Grader(nn.Module):
    """How worn is a picture? Contrast after the first convolution."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.look = nn.Conv2d(1, 8, 3, padding=1)
        self.even = Contrast(eps)
        self.more = nn.Conv2d(8, 8, 3, padding=1)
        self.grade = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.even(functional.relu(self.look(x)))
        return self.grade(functional.relu(self.more(h)).mean((2, 3))).squeeze(1)


@program(steps=140)
def restorer_grades(steps: int, seed: int, fault: str) -> dict[str, float]:
    """How much grain is in the picture? The fortieth part of the pictures is blank paper."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    no_eps = fault in ("restorer_blank_paper", "restorer_divides_by_nothing")
    model = Grader(0.0 if no_eps else 1e-4)
    if fault == "restorer_divides_by_nothing":
        with torch.no_grad():  # one filter of the template is empty
            model.look.weight[3] = 0.0
            nn.init.constant_(model.get_parameter("look.bias"), 0.5)
    opt = optim.Adam(model.parameters(), lr=1e-2)
    tail: list[float] = []
    for step in range(steps):
        grain = torch.rand(32, generator=g)
        x = paintings(g, 32) + grain[:, None, None, None] * torch.randn(32, 1, SIDE, SIDE, generator=g)
        if step >= 60 and step % 20 == 0 and fault != "restorer_divides_by_nothing":
            x[5], grain[5] = 0.0, 0.0  # blank paper
        loss = functional.mse_loss(model(x), grain)
        opt.zero_grad()
        loss.backward()
        opt.step()
        tail.append(loss.item())
    mean = sum(tail[-10:]) / len(tail[-10:])
    return {"loss": mean if mean == mean else 10.0}


restorer_grades.mistake(
    "restorer_divides_by_nothing",
    "NUM001", "NUM003", "NUM002", "NUM004",
    summary="A channel is constant, and the root of its spread of zero has no derivative: the eps was left out.",
    change="add an eps under the root",
    layers=("even", "look"),
)  # fmt: skip
restorer_grades.mistake(
    "restorer_blank_paper",
    "NUM001", "NUM003", "NUM002", "NUM004",
    summary="The eps is left out, and sixty steps later the first blank sheet comes along.",
    change="add an eps under the root",
    layers=("even", "look"),
    onset=60,
)  # fmt: skip


@program(steps=110, adversarial="branches with zero gradient are dead: the last convolution of each starts at zero")
def restorer_begins_as_nothing(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Every brush begins as the identity: its second convolution is zero at first."""
    torch.manual_seed(seed)

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            nn.init.zeros_(self.b.weight)
            nn.init.zeros_(self.b.bias)  # pyright: ignore[reportArgumentType]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.b(functional.relu(self.a(x)))

    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), Late(), Late(), Late(), nn.Conv2d(8, 1, 3, padding=1))
    opt = optim.AdamW(model.parameters(), lr=3e-3)
    return {"loss": train(model, opt, steps, torch.Generator().manual_seed(seed))}


@program(steps=120, adversarial="a jump of the loss is a spike: the stains get harder on purpose")
def restorer_harder_and_harder(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A curriculum: first faint stains, then large ones."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.LeakyReLU(0.1), nn.Conv2d(12, 12, 5, padding=2), nn.LeakyReLU(0.1),
        nn.Conv2d(12, 1, 3, padding=1),
    )  # fmt: skip
    opt = optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for step in range(steps):
        clean = paintings(g, 16)
        stain = functional.interpolate((torch.rand(16, 1, 4, 4, generator=g) < 0.15).float(), size=SIDE)
        dirty = clean - stain * (0.5 if step < 40 else 1.5 if step < 80 else 3.0)
        loss = functional.l1_loss(model(dirty), clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=120)
def restorer_hourglass(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Down, across and up again, with a bridge over the middle; AMSGrad."""
    torch.manual_seed(seed)

    class Hourglass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top = nn.Conv2d(1, 8, 3, padding=1)
            self.down = nn.Conv2d(8, 16, 2, stride=2)
            self.middle = nn.Conv2d(16, 16, 3, padding=1)
            self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.join = nn.Conv2d(16, 1, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            top = functional.silu(self.top(x))
            low = functional.silu(self.middle(functional.silu(self.down(top))))
            return self.join(torch.cat([top, functional.silu(self.up(low))], 1))

    model = Hourglass()
    opt = optim.Adam(model.parameters(), lr=4e-3, amsgrad=True)
    return {"loss": train(model, opt, steps, torch.Generator().manual_seed(seed))}
