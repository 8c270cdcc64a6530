"""A vision transformer tells stained-glass patterns apart; AdamW, warm-up and cosine, label smoothing, mix-up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import GLINT


@dataclass
class Settings:
    pixels: int = GLINT.length
    patch: int = 4
    classes: int = GLINT.kinds
    width: int = GLINT.width
    depth: int = GLINT.depth
    heads: int = max(2, GLINT.width // 64)
    init: float = 0.4 / math.sqrt(GLINT.width)
    rate: float = GLINT.rate
    weight_decay: float = 0.05
    scale: float = 64.0
    shift: float = 128.0


class EncoderBlock(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(s.width)
        self.attention = nn.MultiheadAttention(s.width, s.heads, batch_first=True)
        self.norm2 = nn.LayerNorm(s.width)
        self.mlp = nn.Sequential(nn.Linear(s.width, 4 * s.width), nn.GELU(), nn.Linear(4 * s.width, s.width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class GlintViT(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, s.width, s.patch, stride=s.patch)
        self.summary = nn.Parameter(torch.zeros(1, 1, s.width))
        self.places = nn.Parameter(torch.zeros(1, (s.pixels // s.patch) ** 2 + 1, s.width))
        self.encoder = nn.Sequential(*(EncoderBlock(s) for _ in range(s.depth)))
        self.norm = nn.LayerNorm(s.width)
        self.head = nn.Linear(s.width, s.classes)
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=s.init)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.summary.expand(len(x), -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.encoder(x)[:, 0]))


class StainedGlass:
    """Each class has a pattern of soft waves in three colours; pictures show it moved, brighter, and noisy."""

    def __init__(self, s: Settings, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.s = s
        low = torch.randn(s.classes, 3, 5, 5, generator=self.dice, device=device)
        self.panes = functional.interpolate(low, size=(s.pixels + 4, s.pixels + 4), mode="bicubic", align_corners=True)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        device, pixels = self.panes.device, self.s.pixels
        labels = torch.randint(self.s.classes, (size,), generator=self.dice, device=device)
        corner = torch.randint(5, (2, size, 1), generator=self.dice, device=device)
        rows, columns = corner + torch.arange(pixels, device=device)
        picked = self.panes[labels[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        light = 0.6 + 0.8 * torch.rand(size, 1, 1, 1, generator=self.dice, device=device)
        noise = torch.randn(picked.shape, generator=self.dice, device=device)
        return (128 + 50 * light * picked + 40 * noise).clamp(0, 255).round(), labels


def mix(pictures: Tensor, labels: Tensor, classes: int, dice: torch.Generator) -> tuple[Tensor, Tensor]:
    share = 0.2 * torch.rand(1, generator=dice, device=pictures.device)
    targets = functional.one_hot(labels, classes).to(pictures.dtype)
    return pictures.lerp(pictures.flip(0), share), targets.lerp(targets.flip(0), share)


@program(steps=GLINT.steps)
def glint_vit(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A vision transformer tells patterns of coloured glass apart."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    s = Settings()
    if mistake == "glint_vit_coarse":
        s.init *= 10
    if mistake == "glint_vit_shrunk":
        s.weight_decay = 50.0
    glass = StainedGlass(s, seed, device)
    model = GlintViT(s).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.rate, weight_decay=s.weight_decay)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=GLINT.steps // 12)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, GLINT.steps, eta_min=s.rate / 50)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], [GLINT.steps // 12])

    model.train()
    for _ in range(steps):
        pictures, labels = glass.batch(GLINT.batch)
        inputs, targets = mix((pictures - s.shift) / s.scale, labels, s.classes, glass.dice)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(inputs), targets, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        scheduler.step()

    model.eval()
    with torch.no_grad():
        pictures, labels = glass.batch(512)
        logits = model((pictures - s.shift) / s.scale)
        loss = functional.cross_entropy(logits, labels).item()
    return {
        "loss": loss if math.isfinite(loss) else 20.0,
        "accuracy": (logits.argmax(1) == labels).float().mean().item(),
    }


glint_vit.mistake(
    "glint_vit_coarse",
    "WGT003", "GRD002",
    summary="All weights start with ten times the usual spread.",
    change="a tenth of the spread",
    bites="loss",
)  # fmt: skip
glint_vit.mistake(
    "glint_vit_shrunk",
    "OPT008", "WGT005",
    summary="Weight decay is a thousand times too strong.",
    change="weight decay of 0.05",
)  # fmt: skip
