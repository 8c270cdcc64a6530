"""Fields in a pipe: equations solved by networks, and pictures and distances held as functions of the place."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import healthy, program


def heatpipe_source(x: Tensor) -> Tensor:
    """The source whose field is sin(2 pi x) + 0.2 sin(4 pi x)."""
    return -((2 * math.pi) ** 2) * torch.sin(2 * math.pi * x) - 0.2 * (4 * math.pi) ** 2 * torch.sin(4 * math.pi * x)


def heatpipe_truth(x: Tensor) -> Tensor:
    return torch.sin(2 * math.pi * x) + 0.2 * torch.sin(4 * math.pi * x)


class PipeField(nn.Module):
    def __init__(self, width: int = 32, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.scale * (2 * x - 1))


def heatpipe_residual(field: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_(True)
    u = field(x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    return (bend - heatpipe_source(x)) / 20


def heatpipe_error(field: nn.Module) -> float:
    x = torch.linspace(0, 1, 200)[:, None]
    with torch.no_grad():
        error = (field(x) - heatpipe_truth(x)).square().mean().item()
    return min(error, 1e4) if math.isfinite(error) else 1e4


@program(steps=400, bites="error")
def heatpipe(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Poisson's equation in a pipe: residuals at random places, two walls, Adam with a slow decay."""
    torch.manual_seed(seed)
    field = PipeField(scale=600.0 if fault == "heatpipe_in_millimetres" else 2.0)
    walls = torch.tensor([[0.0], [1.0]])
    wall_weight = 1e7 if fault == "heatpipe_nothing_but_walls" else 20.0
    optimizer = torch.optim.Adam(field.parameters(), lr=8e-3)
    gamma = 0.85 if fault == "heatpipe_slides_off" else 0.995
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
    first = 0.0
    for _ in range(steps):
        inside = heatpipe_residual(field, torch.rand(64, 1)).square().mean()
        loss = inside + wall_weight * field(walls).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        first = first or loss.item()
    return {"first": first, "loss": loss.item(), "error": heatpipe_error(field)}


heatpipe.mistake(
    "heatpipe_nothing_but_walls",
    "GRD009",
    summary="The walls are weighted by ten million: the equation inside the pipe counts for nothing.",
    change="a weight of 20",
)
heatpipe.mistake(
    "heatpipe_in_millimetres",
    "DAT001", "ACT002",
    summary="Places are handed over in millimetres: the first layer's tanh is flat almost everywhere.",
    change="places of order one",
    layers=("net.0", "net.1"),
)  # fmt: skip
heatpipe.mistake(
    "heatpipe_slides_off",
    "OPT007", "UPD002",
    summary="A decay of 0.85 that was meant for epochs is applied after every batch: after fifty steps nothing moves.",
    change="gamma=0.995 per batch",
)  # fmt: skip


@healthy(steps=150, adversarial="a loss that stays the same for the whole step, or rises within it, is a plateau")
def heatpipe_by_lbfgs(steps: int, seed: int) -> dict[str, float]:
    """The same equation on a fixed grid with LBFGS and a line search: a closure is called many times per step."""
    torch.manual_seed(seed)
    field = PipeField(width=20, scale=2.0)
    grid, walls = torch.linspace(0, 1, 48)[:, None], torch.tensor([[0.0], [1.0]])
    optimizer = torch.optim.LBFGS(field.parameters(), max_iter=3, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = heatpipe_residual(field, grid.clone()).square().mean() + 20 * field(walls).square().mean()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(steps)]
    return {"first": losses[0], "loss": losses[-1], "error": heatpipe_error(field)}


def heatpipe_picture(place: Tensor) -> Tensor:
    """A picture of interfering waves, as a function of the place in [-1, 1]^2."""
    x, y = place[:, :1], place[:, 1:]
    return torch.sin(9 * x + 3 * torch.sin(5 * y)) * torch.cos(7 * y) + 0.5 * torch.sign(x + 0.3 * y)


class Sine(nn.Module):
    def __init__(self, into: int, out: int, omega: float = 30.0, first: bool = False, scheme: str = "sine") -> None:
        super().__init__()
        self.omega, self.linear = omega, nn.Linear(into, out)
        if scheme == "sine":
            bound = 1 / into if first else math.sqrt(6 / into) / omega
            nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.omega * self.linear(x))


@program(steps=250, bites="error", adversarial="a first layer with weights far larger than the others")
def heatpipe_waves(steps: int, seed: int, fault: str) -> dict[str, float]:
    """SIREN: sines of thirty times a linear map, drawn so that every layer keeps its spread."""
    torch.manual_seed(seed)
    scheme = "default" if fault == "heatpipe_waves_drawn_by_default" else "sine"
    net = nn.Sequential(
        Sine(2, 64, omega=15.0, first=True), Sine(64, 64, scheme=scheme), Sine(64, 64, scheme=scheme), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-5 / 20 if fault == "heatpipe_waves_at_a_crawl" else 1e-3)
    first = 0.0
    for _ in range(steps):
        place = 2 * torch.rand(256, 2) - 1
        loss = (net(place) - heatpipe_picture(place)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    with torch.no_grad():
        place = 2 * torch.rand(4000, 2, generator=torch.Generator().manual_seed(9)) - 1
        error = (net(place) - heatpipe_picture(place)).square().mean().item()
    return {"first": first, "loss": loss.item(), "error": error}


heatpipe_waves.mistake(
    "heatpipe_waves_drawn_by_default",
    "WGT003",
    summary="The inner sine layers keep PyTorch's default draw, twelve times too wide for an omega of thirty.",
    change="uniform within sqrt(6 / n) / omega",
    layers=("1", "2"),
)
heatpipe_waves.mistake(
    "heatpipe_waves_at_a_crawl",
    "OPT007", "UPD002",
    summary="A rate of 1e-6 for Adam: the picture hardly changes.",
    change="lr=1e-3",
)  # fmt: skip


class Bumps(nn.Module):
    """A sum of bumps whose centres move; centres start at samples of the data."""

    def __init__(self, start: Tensor, safe: bool = True) -> None:
        super().__init__()
        self.centres = nn.Parameter(start.clone())
        self.height = nn.Linear(len(start), 1)
        self.safe = safe

    def forward(self, place: Tensor) -> Tensor:
        square = (place[:, None, :] - self.centres).square().sum(-1)
        distance = torch.sqrt(square + 1e-6) if self.safe else torch.sqrt(square)
        return self.height(torch.exp(-3 * distance))


@program(steps=200, bites="error", adversarial="a sum over the batch gives gradients that explode")
def heatpipe_bumps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Radial bumps with moving centres, a loss that is a sum over the batch."""
    torch.manual_seed(seed)
    place = 2 * torch.rand(1000, 2) - 1
    value = heatpipe_picture(0.5 * place)
    net = Bumps(place[:60], safe=fault != "heatpipe_bumps_on_top_of_data")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    first = 0.0
    for _ in range(steps):
        rows = torch.randperm(1000)[:200]
        loss = (net(place[rows]) - value[rows]).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    with torch.no_grad():
        error = (net(place) - value).square().mean().nan_to_num(1e3).item()
    return {"first": first, "loss": loss.item(), "error": error}


heatpipe_bumps.mistake(
    "heatpipe_bumps_on_top_of_data",
    "NUM001",
    summary="The root of a squared distance without an eps: a centre that sits on a sample gets a gradient of NaN.",
    change="sqrt(square + 1e-6)",
    layers=("centres",),
)


@healthy(steps=300, adversarial="gradients of gradients, or a loss of several terms of different size, are unstable")
def heatpipe_distance(steps: int, seed: int) -> dict[str, float]:
    """A signed distance to a circle: zero on it, and a slope of one everywhere (eikonal), with Softplus and SGD."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 48), nn.Softplus(10), nn.Linear(48, 48), nn.Softplus(10), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    early = late = 0.0
    for step in range(steps):
        angle = 2 * math.pi * torch.rand(48, 1)
        rim = 0.6 * torch.cat([angle.cos(), angle.sin()], dim=1)
        place = (2 * torch.rand(96, 2) - 1).requires_grad_(True)
        height = net(place)
        (slope,) = torch.autograd.grad(height.sum(), place, create_graph=True)
        inside = torch.relu(0.1 + net(torch.zeros(1, 2))).mean()
        loss = 3 * net(rim).square().mean() + 0.2 * (slope.norm(dim=1) - 1).square().mean() + inside
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        optimizer.step()
        early += loss.item() / 5 if step < 5 else 0.0
        late += loss.item() / 30 if step >= steps - 30 else 0.0
    return {"early": early, "loss": late}
