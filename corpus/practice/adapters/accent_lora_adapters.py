"""A finished recogniser of vowels is taught another accent with low-rank adapters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from corpus.case import program

SOUNDS, FORMANTS, WIDTH = 8, 32, 64


def recordings(gen: torch.Generator, n: int, turned: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Sounds are clusters; the other accent turns most directions of the space."""
    fixed = torch.Generator().manual_seed(11)
    centres = torch.randn(SOUNDS, FORMANTS, generator=fixed)
    basis = torch.linalg.qr(torch.randn(FORMANTS, FORMANTS, generator=fixed))[0]
    label = torch.randint(SOUNDS, (n,), generator=gen)
    x = centres[label] + 1.5 * torch.randn(n, FORMANTS, generator=gen)
    if turned:
        a, b = basis[:, :12], basis[:, 12:24]
        along, across = x @ a, x @ b
        x = x - along @ a.T - across @ b.T + across @ a.T - along @ b.T
    return x, label


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ear = nn.Linear(FORMANTS, WIDTH)
        self.mid = nn.Linear(WIDTH, WIDTH)
        self.say = nn.Linear(WIDTH, SOUNDS)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.mid(torch.tanh(self.ear(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.say(self.features(x))


def finished_model() -> Recogniser:
    """What a checkpoint would hold: broad features, and a head solved for the standard accent."""
    gen = torch.Generator().manual_seed(5)
    model = Recogniser()
    with torch.no_grad():
        for layer in (model.ear, model.mid):
            layer.weight.copy_(torch.linalg.qr(torch.randn(WIDTH, layer.in_features, generator=gen))[0])
            layer.bias.copy_(0.1 * torch.randn(WIDTH, generator=gen))
        x, label = recordings(gen, 2000, turned=False)
        h = torch.cat([model.features(x), torch.ones(2000, 1)], 1)
        onehot = 6.0 * nn.functional.one_hot(label, SOUNDS)
        solved = torch.linalg.solve(h.T @ h + 0.1 * torch.eye(WIDTH + 1), h.T @ onehot)
        model.say.weight.copy_(solved[:-1].T)
        model.say.bias.copy_(solved[-1])
    return model


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scale * (x @ self.down.T @ self.up.T)


@dataclass
class Config:
    rank: int = 12
    alpha: float = 24.0
    lr: float = 4e-3
    blank: bool = False
    optimizer_first: bool = False


CONFIGS = {
    "accent_both_factors_blank": Config(blank=True),
    "accent_alpha_of_thousands": Config(alpha=4800.0),
    "accent_alpha_of_another_rank": Config(alpha=1200.0),
    "accent_optimizer_came_first": Config(optimizer_first=True),
}


@program(steps=180, bites="accuracy")
def accent_adapters(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adapters of rank twelve in two layers, and the head is trained on."""
    torch.manual_seed(seed)
    cfg = CONFIGS.get(fault, Config())
    model = finished_model().requires_grad_(False)
    model.say.requires_grad_(True)
    early = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=cfg.lr)
    model.ear = Adapted(model.ear, cfg.rank, cfg.alpha)  # pyright: ignore[reportAttributeAccessIssue]
    model.mid = Adapted(model.mid, cfg.rank, cfg.alpha)  # pyright: ignore[reportAttributeAccessIssue]
    adapters = [p for n, p in model.named_parameters() if n.endswith(("down", "up"))]
    if cfg.blank:
        for p in adapters:
            nn.init.zeros_(p)
    opt = (
        early
        if cfg.optimizer_first
        else torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), cfg.lr)
    )
    gen = torch.Generator().manual_seed(seed)
    before = [p.detach().clone() for p in adapters]
    losses: list[float] = []
    for _ in range(steps):
        x, y = recordings(gen, 32, turned=True)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    with torch.no_grad():
        x, y = recordings(torch.Generator().manual_seed(seed + 99), 1000, turned=True)
        accuracy = (model(x).argmax(1) == y).float().mean().item()
        moved = math.sqrt(sum((p - b).square().sum().item() for p, b in zip(adapters, before, strict=True)))
    return {"loss": sum(losses[-10:]) / len(losses[-10:]), "accuracy": accuracy, "moved": moved}


accent_adapters.mistake(
    "accent_both_factors_blank",
    "GRD004", "WGT002",
    summary="Both factors of every adapter start at zero: neither will ever get a gradient.",
    change="draw the first factor at random",
    layers=("ear", "mid"),
    bites="moved",
    silent=True,
)  # fmt: skip
accent_adapters.mistake(
    "accent_alpha_of_thousands",
    "UPD001", "OPT007", "OPT001", "OPT003", "GRD002", "ACT002", "GRD006",
    summary="alpha is 4800, meant for another convention: one step of the adapter outweighs the layer it adapts.",
    change="alpha of twice the rank",
    layers=("ear", "mid"),
)  # fmt: skip
accent_adapters.mistake(
    "accent_alpha_of_another_rank",
    "UPD001", "OPT007", "OPT001", "OPT003", "GRD002", "ACT002", "GRD006",
    summary="alpha is 1200 instead of 24: fifty times too large for adapters of rank twelve.",
    change="alpha of twice the rank",
    layers=("ear", "mid"),
)  # fmt: skip
accent_adapters.mistake(
    "accent_optimizer_came_first",
    "UPD003",
    summary="The optimizer is made before the adapters are put in: it trains the head and nothing else.",
    change="make the optimizer after the adapters",
    layers=("ear", "mid"),
    bites="moved",
    silent=True,
)


@program(steps=140, bites="loss", adversarial="most parameters never move: only a shift of the input is learned")
def accent_one_offset(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The speaker is far from the microphone: learn one offset and one gain per formant, freeze everything else."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    model = finished_model().requires_grad_(False)
    offset, gain = nn.Parameter(torch.zeros(FORMANTS)), nn.Parameter(torch.ones(FORMANTS))
    room = torch.randn(FORMANTS, generator=gen)
    opt = torch.optim.Adam([offset, gain], lr=2e-2)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = recordings(gen, 64, turned=False)
        x = 0.6 * x + room
        loss = nn.functional.cross_entropy(model(gain * x + offset), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


class Switch(nn.Module):
    """A bottleneck beside a frozen layer, behind a gate that starts at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.small = nn.Sequential(nn.Linear(base.in_features, 12), nn.SiLU(), nn.Linear(12, base.out_features))
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.gate * self.small(x)


@program(steps=150, bites="loss", adversarial="a gradient of exactly zero is dead: the gate starts at zero by design")
def accent_gated_bottleneck(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Bottleneck adapters behind gates that open during training."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    model = finished_model().requires_grad_(False)
    model.ear = Switch(model.ear)  # pyright: ignore[reportAttributeAccessIssue]
    model.mid = Switch(model.mid)  # pyright: ignore[reportAttributeAccessIssue]
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = recordings(gen, 48, turned=True)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=150, bites="loss", adversarial="the student sees probabilities as targets: a divergence, not a loss bug")
def accent_from_the_old_model(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A student of half the width learns the finished model's soft answers at temperature two."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    teacher = finished_model().eval()
    student = nn.Sequential(nn.Linear(FORMANTS, 32), nn.ReLU(), nn.Linear(32, SOUNDS))
    opt = torch.optim.Adam(student.parameters(), lr=5e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x, _ = recordings(gen, 64, turned=False)
        with torch.no_grad():
            soft = torch.softmax(teacher(x) / 2, 1)
        loss = 4 * nn.functional.kl_div(torch.log_softmax(student(x) / 2, 1), soft, reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}
