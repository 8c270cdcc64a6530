"""Moss, lichen or bark? Small grey patches and a residual convolutional network without norms."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

SORTS, SIDE = 6, 14


def patches(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Every sort has its own pair of waves; where they lie is chance."""
    g = torch.Generator().manual_seed(42 + seed)
    sort = torch.randint(SORTS, (n,), generator=g)
    along = torch.arange(SIDE, dtype=torch.float32)
    angle = sort * 3.1416 / SORTS + 0.12 * torch.randn(n, generator=g)
    pitch = 0.9 + 0.25 * (sort % 2) + 0.05 * torch.randn(n, generator=g)
    phase = torch.rand(n, generator=g) * 6.28
    wave = angle.cos()[:, None, None] * along[:, None] + angle.sin()[:, None, None] * along[None]
    picture = torch.sin(pitch[:, None, None] * wave + phase[:, None, None])
    return (picture + 0.4 * torch.randn(n, SIDE, SIDE, generator=g))[:, None], sort


class Block(nn.Module):
    def __init__(self, c: int, skip: bool = True) -> None:
        super().__init__()
        self.a = nn.Conv2d(c, c, 3, padding=1)
        self.b = nn.Conv2d(c, c, 3, padding=1)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(fn.relu(self.a(x)))
        return fn.relu(x + y if self.skip else y)


class MossNet(nn.Module):
    def __init__(self, depth: int = 6, c: int = 12, skip: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, c, 5, stride=2, padding=2)
        self.blocks = nn.Sequential(*(Block(c, skip) for _ in range(depth)))
        self.head = nn.Linear(c, SORTS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(fn.relu(self.stem(x)))
        return self.head(x.mean((2, 3)))


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


@program(steps=150, bites="accuracy")
def moss(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Six residual blocks, Adam, a warm-up over thirty steps."""
    torch.manual_seed(seed)
    x, y = patches(1500, seed)
    model = MossNet(skip=fault != "moss_no_way_around")
    if fault == "moss_dark_background":
        nn.init.constant_(model.stem.bias, -6.0)  # pyright: ignore[reportArgumentType]
    if fault == "moss_still_mostly_frozen":
        # left from last week, when the weights came from a file
        for name, p in model.named_parameters():
            if name.startswith(("stem", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "blocks.4")):
                p.requires_grad = False
    start = model.stem.weight.detach().clone()
    peak = 0.5 if fault == "moss_peak_of_another_net" else 0.004
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=peak)
    value = 0.0
    for step in range(steps):
        for group in opt.param_groups:
            if fault == "moss_peak_of_another_net":
                group["lr"] = 0.004 if step < 60 else peak
            else:
                group["lr"] = peak * min(1.0, (step + 1) / 30)
        rows = torch.randperm(1200)[:64]
        out = model(x[rows])
        loss = fn.cross_entropy(out, y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = loss.item()
    return {
        "loss": value if value == value else 1e9,
        "accuracy": accuracy(model, x[1200:], y[1200:]),
        "moved": (model.stem.weight.detach() - start).norm().item(),
    }


moss.mistake(
    "moss_no_way_around",
    "GRD001", "WGT003", "ACT003",
    summary="The blocks return what they computed without adding what came in: twelve plain convolutions in a row.",
    change="add the input",
    layers=("blocks",),
)  # fmt: skip
moss.mistake(
    "moss_dark_background",
    "ACT001",
    "GRD004",
    summary="The stem's bias is set to minus six so that the background stays dark: its ReLU never opens.",
    change="bias zero",
    layers=("stem",),
)
moss.mistake(
    "moss_peak_of_another_net",
    "OPT007", "UPD001", "OPT001", "ACT001", "GRD002", "GRD006", "OPT003", "NUM002", "NUM003",
    summary="From step sixty the rate is a half, copied from a net with norms and plain descent.",
    change="a peak of 0.004",
    onset=60,
)  # fmt: skip
moss.mistake(
    "moss_still_mostly_frozen",
    "UPD003",
    "UPD004",
    summary="Lines from a fine-tuning freeze the stem and five blocks, but this net starts from nothing.",
    change="do not freeze",
    layers=("stem", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "blocks.4"),
    bites="moved",
    silent=True,
)


@program(steps=120, bites="accuracy", adversarial="most activations are zero, so the units are dead")
def moss_top_few(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Only the largest three of forty channels stay at every place: sparse, and every channel has its turn."""
    torch.manual_seed(seed)
    x, y = patches(1500, seed)

    class TopFew(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            keep = h.topk(3, dim=1).values[:, -1:]
            return fn.relu(h) * (h >= keep)

    model = nn.Sequential(
        nn.Conv2d(1, 40, 5, stride=2, padding=2), nn.BatchNorm2d(40), TopFew(),
        nn.Conv2d(40, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, SORTS),
    )  # fmt: skip
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    value = 0.0
    for _ in range(steps):
        rows = torch.randperm(1200)[:64]
        loss = fn.cross_entropy(model(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = loss.item()
    return {"loss": value, "accuracy": accuracy(model, x[1200:], y[1200:])}


@program(steps=140, bites="accuracy", adversarial="a first layer that never moves was forgotten")
def moss_fixed_filters(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Frozen oriented filters computed from a formula stand in front; only what follows learns."""
    torch.manual_seed(seed)
    x, y = patches(1500, seed)
    bank = nn.Conv2d(1, 16, 7, padding=3, bias=False)
    at = torch.arange(7, dtype=torch.float32) - 3
    with torch.no_grad():
        for k in range(16):
            angle, shift = torch.tensor((k // 2) * 3.1416 / 8), 1.57 * (k % 2)
            wave = torch.sin(1.05 * (angle.cos() * at[:, None] + angle.sin() * at[None]) + shift)
            bank.weight[k, 0] = wave * torch.exp(-(at[:, None] ** 2 + at[None] ** 2) / 8) / 4
    bank.requires_grad_(False)
    model = nn.Sequential(
        bank, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(SORTS)
    )
    model(x[:2])
    opt = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=2e-3)
    value = 0.0
    for _ in range(steps):
        rows = torch.randperm(1200)[:64]
        loss = fn.cross_entropy(model(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = loss.item()
    return {"loss": value, "accuracy": accuracy(model, x[1200:], y[1200:])}
