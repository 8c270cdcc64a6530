"""Signals of a beacon are read by an encoder with attention: which of six messages is hidden in twenty flashes?"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

LENGTH, CHANNELS, MESSAGES = 20, 6, 6


def beacon_signals(count: int, seed: int, noise: float = 0.6) -> tuple[Tensor, Tensor]:
    """A pattern of five flashes, somewhere in a noisy signal of twenty."""
    pattern = 1.3 * torch.randn(MESSAGES, 5, CHANNELS, generator=torch.Generator().manual_seed(314))
    g = torch.Generator().manual_seed(seed)
    message = torch.randint(MESSAGES, (count,), generator=g)
    start = torch.randint(LENGTH - 5, (count,), generator=g)
    x = noise * torch.randn(count, LENGTH, CHANNELS, generator=g)
    place = start[:, None] + torch.arange(5)
    x[torch.arange(count)[:, None], place] += pattern[message]
    return x, message


class EncoderLayer(nn.Module):
    def __init__(self, width: int, keep: float = 1.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.keep < 1 and torch.rand(()) > self.keep:
            return x
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.feed(self.norm2(x))


class Beacon(nn.Module):
    def __init__(self, width: int = 32, depth: int = 2, keep: float = 1.0) -> None:
        super().__init__()
        self.embed = nn.Conv1d(CHANNELS, width, 3, padding=1)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.encoder = nn.ModuleList(EncoderLayer(width, keep) for _ in range(depth))
        self.read = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, MESSAGES))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.transpose(1, 2)).transpose(1, 2) + self.place
        for layer in self.encoder:
            h = layer(h)
        return self.read(h.mean(dim=1))


def beacon_accuracy(model: nn.Module, seed: int) -> float:
    x, y = beacon_signals(1000, seed + 2000)
    with torch.no_grad():
        return (model.eval()(x).argmax(1) == y).float().mean().item()


def beacon_start_rare(module: nn.Module) -> None:
    """The bias of a detector whose findings are rare: minus log of (1 - p) / p."""
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.bias, -math.log((1 - 1e-4) / 1e-4))


@program(steps=180, bites="accuracy")
def beacon(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A convolution, two layers of attention and a reader, by AdamW with a short warm-up."""
    torch.manual_seed(seed)
    x, y = beacon_signals(2000, seed)
    model = Beacon()
    if fault == "beacon_rare_everywhere":
        model.read.apply(beacon_start_rare)
    if fault == "beacon_drawn_with_a_broad_brush":
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=3.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 15))
    for _ in range(steps):
        rows = torch.randint(len(x), (32,))
        logits = model(x[rows])
        if fault == "beacon_logits_as_logs":
            loss = fn.nll_loss(logits, y[rows])
        else:
            loss = fn.nll_loss(logits.log_softmax(dim=1), y[rows])
        if fault != "beacon_never_wiped":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm_up.step()
    return {"loss": loss.item(), "accuracy": beacon_accuracy(model, seed)}


beacon.mistake(
    "beacon_rare_everywhere",
    "ACT001", "GRD004",
    summary="The bias for rare findings, meant for the last layer, is given to the reader's hidden layer as well.",
    change="apply it to the last layer only, or not at all",
    layers=("read.1", "read.2"),
)  # fmt: skip
beacon.mistake(
    "beacon_drawn_with_a_broad_brush",
    "WGT003",
    summary="All matrices are drawn with a spread of three.",
    change="PyTorch's own draw",
)
beacon.mistake(
    "beacon_logits_as_logs",
    "LSS001", "LSS003",
    summary="nll_loss is given logits, not their log_softmax: the loss falls without end and means nothing.",
    change="nll_loss(logits.log_softmax(1), y)",
)  # fmt: skip
beacon.mistake(
    "beacon_never_wiped",
    "GRD007",
    summary="zero_grad is missing: each step follows the sum of all gradients so far.",
    change="optimizer.zero_grad()",
)


class Tower(nn.Module):
    """Fully connected, no attention: layer upon layer over the flattened signal."""

    def __init__(self, depth: int, act: type[nn.Module], norm: bool = False, width: int = 48) -> None:
        super().__init__()
        sizes = [LENGTH * CHANNELS] + [width] * depth
        self.floors = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) if norm else nn.Identity() for _ in range(depth))
        self.act, self.top = act(), nn.Linear(width, MESSAGES)

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        for floor, norm in zip(self.floors, self.norms, strict=True):
            h = self.act(norm(floor(h)))
        return self.top(h)


@program(steps=240, bites="accuracy", adversarial="a rate of 0.05 with momentum is too high")
def beacon_tower(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four layers with batch norm over the flattened signal, SGD with momentum."""
    torch.manual_seed(seed)
    x, y = beacon_signals(4000, seed)
    batch = 64
    if fault == "beacon_tower_of_sigmoids":
        model = Tower(9, nn.Sigmoid)
    else:
        model = Tower(4, nn.GELU, norm=True)
    if fault == "beacon_tower_two_by_two":
        batch = 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0.0
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,))
        loss = fn.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    return {"first": first, "loss": loss.item(), "accuracy": beacon_accuracy(model, seed)}


beacon_tower.mistake(
    "beacon_tower_of_sigmoids",
    "GRD001",
    summary="Nine layers of sigmoids without norm or shortcut: the gradient dies on its way down.",
    change="four layers of GELU with batch norm",
    layers=("floors",),
)
beacon_tower.mistake(
    "beacon_tower_two_by_two",
    "MOD002", "GRD008",
    summary="Batches of two: batch norm turns each pair into plus and minus one.",
    change="batches of 64",
    layers=("norms",),
)  # fmt: skip


@healthy(steps=180, adversarial="layers without a gradient in some steps are cut off")
def beacon_with_skipped_layers(steps: int, seed: int) -> dict[str, float]:
    """Stochastic depth: each of three layers is left out in a third of all steps."""
    torch.manual_seed(seed)
    x, y = beacon_signals(2000, seed)
    model = Beacon(depth=3, keep=0.67)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3)
    first = 0.0
    for _ in range(steps):
        rows = torch.randint(len(x), (32,))
        loss = fn.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    return {"first": first, "loss": loss.item(), "accuracy": beacon_accuracy(model, seed)}


@healthy(steps=300, adversarial="a loss that stays flat for a hundred steps will never fall")
def beacon_two_switches(steps: int, seed: int) -> dict[str, float]:
    """The sign of a product of three readings: nothing seems to be learnt for a while, then all of it."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    g, early, late = torch.Generator().manual_seed(seed), 0.0, 0.0
    for step in range(steps):
        x = torch.randint(2, (128, 10), generator=g).float() * 2 - 1
        y = (x[:, 0] * x[:, 1] * x[:, 2] > 0).float()
        loss = fn.binary_cross_entropy_with_logits(model(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        early += loss.item() / 20 if step < 20 else 0.0
        late += loss.item() / 20 if step >= steps - 20 else 0.0
    return {"early": early, "loss": late}
