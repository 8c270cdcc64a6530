"""Where are the knuckles? Heat maps of three joints of a bent finger, from small noisy pictures.

usage: edit CONFIG, call train(...)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from corpus.case import program

SIZE, JOINTS = 20, 3
CONFIG: dict[str, Any] = {"lr": 0.2, "momentum": 0.9, "batch": 32, "pieces": 4, "eval_every": 30}
YY, XX = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")


def bump(points: Tensor, width: float) -> Tensor:
    """[n, k, 2] -> [n, k, SIZE, SIZE]"""
    d2 = (XX - points[..., 0, None, None]) ** 2 + (YY - points[..., 1, None, None]) ** 2
    return torch.exp(-d2 / (2 * width**2))


def fingers(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    start = 6 + 3 * torch.rand(n, 2, generator=g)
    angle = torch.rand(n, generator=g) * 1.2
    points = [start]
    for bone in (5.0, 4.0):
        step = torch.stack([angle.cos(), angle.sin()], 1) * bone
        points.append(points[-1] + step)
        angle = angle + 0.7 * torch.rand(n, generator=g)
    joints = torch.stack(points, 1)
    between = torch.cat([joints[:, :2] + t * (joints[:, 1:] - joints[:, :2]) for t in (0.0, 0.33, 0.67, 1.0)], 1)
    picture = bump(between, 1.0).sum(1, keepdim=True).clamp(max=1.5)
    dust = bump(SIZE * torch.rand(n, 6, 2, generator=g), 1.0).sum(1, keepdim=True)
    contrast = torch.exp(0.6 * torch.randn(n, 1, 1, 1, generator=g))
    light = 1.5 * torch.randn(n, 1, 1, 1, generator=g)
    noise = 0.2 * torch.randn(n, 1, SIZE, SIZE, generator=g)
    return (picture + dust + noise) * contrast + light, joints


def block(c_in: int, c_out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU())


class Hourglass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = block(1, 16)
        self.down1 = block(16, 24, 2)
        self.down2 = block(24, 32, 2)
        self.up2 = block(32, 24)
        self.up1 = block(24, 16)
        self.heat = nn.Conv2d(16, JOINTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.stem(x)
        b = self.down1(a)
        c = self.down2(b)
        b = b + nn.functional.interpolate(self.up2(c), scale_factor=2)
        a = a + nn.functional.interpolate(self.up1(b), scale_factor=2)
        return self.heat(a)


def found(model: nn.Module, seed: int) -> float:
    """The share of joints found within a pixel."""
    model.eval()
    with torch.no_grad():
        x, joints = fingers(300, torch.Generator().manual_seed(777 + seed))
        best = model(x).flatten(2).argmax(-1)
        guess = torch.stack([best % SIZE, best // SIZE], -1)
        return ((guess - joints).norm(dim=-1) < 1.0).float().mean().item()


def loss_of(model: nn.Module, x: Tensor, joints: Tensor) -> Tensor:
    """Cross-entropy between the heat map of each joint and a narrow bump."""
    wanted = bump(joints, 0.7).flatten(2)
    wanted = wanted / wanted.sum(-1, keepdim=True)
    return -(wanted * model(x).flatten(2).log_softmax(-1)).sum(-1).mean()


@program(steps=90, bites="found")
def knuckles(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An hourglass with batch normalisation; every step is four pieces of eight pictures; Nesterov momentum."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    cfg = dict(CONFIG)
    if fault == "knuckles_two_per_piece":
        cfg.update(batch=8)  # the card was too small
    if fault == "knuckles_ten_pieces_added":
        cfg.update(batch=80, pieces=10)
    model = Hourglass()
    opt = torch.optim.SGD(model.parameters(), lr=cfg["lr"], momentum=cfg["momentum"], nesterov=True)
    for it in range(steps):
        model.train()
        opt.zero_grad(set_to_none=True)
        for _ in range(cfg["pieces"]):
            x, joints = fingers(cfg["batch"] // cfg["pieces"], g)
            loss = loss_of(model, x, joints)
            if fault != "knuckles_ten_pieces_added":
                loss = loss / cfg["pieces"]
            loss.backward()
        if fault == "knuckles_mask_turned_round" and it >= 4:
            for name, p in model.named_parameters():  # meant: only the last layer for the first four steps
                if not name.startswith("heat") and p.grad is not None:
                    p.grad.mul_(0.0)
        opt.step()
        if (it + 1) % cfg["eval_every"] == 0:
            found(model, seed)
    x, joints = fingers(64, g)
    return {"loss": loss_of(model, x, joints).item(), "found": found(model, seed)}


knuckles.mistake(
    "knuckles_two_per_piece",
    "MOD002",
    summary="Each piece has two pictures: batch normalisation takes its statistics from next to nothing.",
    change="larger pieces, or GroupNorm",
    layers=("stem", "down1", "down2", "up2", "up1"),
)
knuckles.mistake(
    "knuckles_ten_pieces_added",
    "LSS004", "OPT007", "UPD001",
    summary="Ten pieces make a step, and their losses are added, not averaged.",
    change="divide the loss by the number of pieces",
)  # fmt: skip
knuckles.mistake(
    "knuckles_mask_turned_round",
    "GRD004",
    summary="From step four the gradients of all but the last layer are zeroed, by a mask the wrong way round.",
    change="mask before step four, not after",
    layers=("stem", "down1", "down2", "up2", "up1"),
    onset=4,
)


@program(steps=60, bites="found", adversarial="batch normalisation sees very small batches")
def knuckles_three_at_a_time(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Pieces of three large pictures, but the normalisation goes over groups of channels."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Hourglass()
    for name in ("stem", "down1", "down2", "up2", "up1"):
        part = getattr(model, name)
        part[1] = nn.GroupNorm(4, part[1].num_features)
    opt = torch.optim.AdamW(model.parameters(), lr=6e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        opt.zero_grad()
        for _ in range(4):
            loss = loss_of(model, *fingers(3, g)) / 4
            loss.backward()
        opt.step()
    return {"loss": 4 * loss.item(), "found": found(model, seed)}


@program(steps=80)
def knuckles_by_moments(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Soft-argmax: the joint is the mean of its heat map; smooth L1 on coordinates, RMSprop, polynomial decay."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Hourglass()
    opt = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    decay = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=steps, power=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        x, joints = fingers(32, g)
        weight = model(x).flatten(2).softmax(-1)
        guess = torch.stack([(weight * XX.flatten()).sum(-1), (weight * YY.flatten()).sum(-1)], -1)
        loss = nn.functional.smooth_l1_loss(guess, joints)
        opt.zero_grad()
        loss.backward()
        opt.step()
        decay.step()
    return {"loss": loss.item()}
