"""From which country is the stamp? A small mixer over patches, in the style of a single-file repository."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
from torch import Tensor

from corpus.case import program

COUNTRIES, SIDE, PATCH, DIM = 7, 16, 4, 32
PATCHES = (SIDE // PATCH) ** 2


def stamps_of(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Every country has an emblem, somewhere on the stamp and more or less inked."""
    g = torch.Generator().manual_seed(90 + seed)
    emblem = torch.randn(COUNTRIES, 8, 8, generator=g)
    y = torch.randint(COUNTRIES, (n,), generator=g)
    x = 0.6 * torch.randn(n, SIDE, SIDE, generator=g)
    corner = torch.randint(3, (n, 2), generator=g) * 4
    ink = 0.6 + 0.8 * torch.rand(n, generator=g)
    for i in range(n):
        r, c = int(corner[i, 0]), int(corner[i, 1])
        x[i, r : r + 8, c : c + 8] += ink[i] * emblem[y[i]]
    return x, y


class MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.across = nn.Sequential(nn.Linear(PATCHES, 32), nn.GELU(), nn.Linear(32, PATCHES))
        self.along = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm_a(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm_b(x))


class Mixer(nn.Module):
    def __init__(self, depth: int = 2, rectified: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, DIM)
        self.blocks = nn.Sequential(*(MixerBlock() for _ in range(depth)))
        self.norm = nn.LayerNorm(DIM)
        last: list[nn.Module] = [nn.Linear(DIM, COUNTRIES)]
        if rectified:
            last.append(nn.ReLU())
        self.head = nn.Sequential(*last)
        nn.init.normal_(last[0].weight, std=0.02)  # pyright: ignore
        nn.init.constant_(last[0].bias, -math.log(COUNTRIES))  # pyright: ignore

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(1, 2).flatten(2)
        return self.head(self.norm(self.blocks(self.embed(patches))).mean(1))


def main(steps: int, seed: int, model: Mixer, opt: torch.optim.Optimizer) -> dict[str, float]:
    x, y = stamps_of(1400, seed)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: min(1.0, (t + 1) / 20))
    total = 0.0
    for _ in range(steps):
        i = torch.randint(1000, (64,))
        loss = nn.functional.cross_entropy(model(x[i]), y[i])
        loss.backward()
        opt.step()
        warm.step()
        opt.zero_grad()
        total = loss.item()
    with torch.no_grad():
        correct = (model(x[1000:]).argmax(1) == y[1000:]).float().mean().item()
    return {"loss": total if total == total else 1e9, "accuracy": correct}


@program(steps=150, bites="accuracy")
def stamps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two mixer blocks, AdamW after a short warm-up; the head starts at the logarithm of a fair guess."""
    torch.manual_seed(seed)
    model = Mixer(rectified=fault == "stamps_rectified_scores")
    if fault == "stamps_first_block_asleep":
        model.blocks[0].requires_grad_(False)
        model.embed.requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    return main(steps, seed, model, opt)


stamps.mistake(
    "stamps_rectified_scores",
    "ACT001", "GRD004", "LSS003",
    summary="A ReLU stands behind the scores, whose bias starts below zero: all scores are zero for every stamp.",
    change="no activation behind the scores",
    layers=("head",),
)  # fmt: skip
stamps.mistake(
    "stamps_first_block_asleep",
    "UPD003",
    "UPD004",
    summary="Embedding and first block were switched off for a speed test and stayed so: they keep their random start.",
    change="switch them on again",
    layers=("embed", "blocks.0"),
)


@program(steps=150, bites="accuracy", adversarial="a branch whose last layer starts at zero has no gradient behind it")
def stamps_from_silence(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The last layer of every branch starts at zero, so the mixer starts as nothing but its skips."""
    torch.manual_seed(seed)
    model = Mixer(depth=4)
    for block in model.blocks:
        for branch in (block.across, block.along):  # pyright: ignore
            nn.init.zeros_(branch[2].weight)  # pyright: ignore
    return main(steps, seed, model, torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05))


@program(steps=150, bites="accuracy", adversarial="every update has the same size, so the gradients are ignored")
def stamps_by_sign(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An optimizer of one's own that steps by the sign of a mean of gradients."""

    class SignDescent(torch.optim.Optimizer):
        def __init__(self, params, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None) -> None:  # pyright: ignore
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    mean.lerp_(p.grad, 0.1)
                    p.mul_(1 - 0.1 * group["lr"]).sub_(mean.sign(), alpha=group["lr"])

    torch.manual_seed(seed)
    model = Mixer()
    return main(steps, seed, model, SignDescent(model.parameters(), lr=7e-4))
