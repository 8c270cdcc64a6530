"""A vision transformer for woven swatches: configuration in a dataclass, bfloat16 autocast, warm-up and EMA."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program


@dataclass(frozen=True)
class Config:
    size: int = 16
    patch: int = 4
    width: int = 48
    heads: int = 4
    depth: int = 2
    classes: int = 5
    rate: float = 5e-3
    warm_up: int = 5
    batch: int = 48


def swatches(seed: int, count: int, config: Config) -> tuple[Tensor, Tensor]:
    """Sixteen squares of cloth in each picture; what counts is the kind that is there most often."""
    cells = torch.randn(config.classes, 4, 4, generator=torch.Generator().manual_seed(12))
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(config.classes, (count,), generator=g)
    squares = torch.randint(config.classes, (count, 16), generator=g)
    squares = torch.where(torch.rand(count, 16, generator=g) < 0.4, kind[:, None], squares)
    patches = cells[squares] + 0.7 * torch.randn(count, 16, 4, 4, generator=g)
    return patches.view(count, 4, 4, 4, 4).transpose(2, 3).reshape(count, 1, 16, 16), kind


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, sharp: bool) -> None:
        super().__init__()
        self.heads, self.sharp = heads, sharp
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        d = w // self.heads
        factor = d * d if self.sharp else d**-0.5
        weights = (q @ k.transpose(-2, -1) * factor).softmax(-1)  # at fault: swatch_scores_multiplied
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, w))


class Block(nn.Module):
    def __init__(self, config: Config, sharp: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = Attention(config.width, config.heads, sharp)
        self.mlp = nn.Sequential(nn.Linear(config.width, 96), nn.GELU(), nn.Linear(96, config.width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, config: Config, sharp: bool = False) -> None:
        super().__init__()
        patches = (config.size // config.patch) ** 2
        self.embed = nn.Conv2d(1, config.width, config.patch, config.patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, patches, config.width))
        self.summary = nn.Parameter(0.02 * torch.randn(1, 1, config.width))
        self.blocks = nn.ModuleList(Block(config, sharp) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, 1000)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.embed(pictures).flatten(2).transpose(1, 2) + self.position
        x = torch.cat([self.summary.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def ramp(step: int, warm_up: int, endless: bool) -> float:
    limit = max if endless else min
    return limit(1.0, (step + 1) / warm_up)  # at fault: swatch_warm_up_never_ends


@program(steps=400, bites="accuracy")
def swatch_transformer(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Vision transformer under AdamW with bfloat16 autocast, warm-up, clipping and an average of the weights."""
    torch.manual_seed(seed)
    config = Config()
    pictures, kinds = swatches(seed, 4000, config)
    test, test_kinds = swatches(seed + 1, 300, config)
    model = VisionTransformer(config, sharp=mistake == "swatch_scores_multiplied")
    if mistake != "swatch_head_after_optimizer":
        model.head = nn.Linear(config.width, config.classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.rate, betas=(0.9, 0.95), weight_decay=0.02)
    if mistake == "swatch_head_after_optimizer":
        model.head = nn.Linear(config.width, config.classes)  # at fault: swatch_head_after_optimizer
    endless = mistake == "swatch_warm_up_never_ends"
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: ramp(step, config.warm_up, endless))
    head_before = model.head.weight.detach().clone()
    average = copy.deepcopy(model).requires_grad_(False)
    for step in range(steps):
        batch = torch.randint(len(pictures), (config.batch,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(pictures[batch]).float(), kinds[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for mean, current in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(current, max(0.05, 1 / (step + 1)))
    with torch.no_grad():
        outputs = average(test)
    correct = (outputs.argmax(1) == test_kinds).float().mean().item()
    head_moved = ((model.head.weight - head_before).norm() / head_before.norm()).item()
    return {"accuracy": correct, "loss": F.cross_entropy(outputs, test_kinds).item(), "head_moved": head_moved}


swatch_transformer.mistake(
    "swatch_scores_multiplied",
    "ACT004",
    summary="Attention scores are multiplied by the head's size squared instead of divided by its root.",
    change="d ** -0.5",
    layers=("blocks.0.attention", "blocks.1.attention"),
)
swatch_transformer.mistake(
    "swatch_head_after_optimizer",
    "UPD003",
    summary="The head for five classes is put in after the optimizer was given the parameters.",
    change="the head is replaced before the optimizer is built",
    layers=("head",),
    bites="head_moved",
    silent=True,
)
swatch_transformer.mistake(
    "swatch_warm_up_never_ends",
    "OPT007",
    "UPD001",
    summary="The warm-up takes the larger of one and the ramp, so the rate climbs for ever.",
    change="min",
    onset=5,
)
