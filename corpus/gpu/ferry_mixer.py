"""Lights of ferries at night are told apart by a mixer; SGD on the mean of eight micro-batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import FERRY

PARTS = 8
PATCH = 4


class MixerLayer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm_tokens = nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.norm_channels = nn.LayerNorm(width)
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm_tokens(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm_channels(x))


class FerryMixer(nn.Module):
    def __init__(self, pixels: int, width: int, depth: int, ferries: int) -> None:
        super().__init__()
        tokens = (pixels // PATCH) ** 2
        self.look = nn.Conv2d(1, width, PATCH, stride=PATCH)
        self.layers = nn.Sequential(*(MixerLayer(tokens, width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.name = nn.Linear(width, ferries)

    def forward(self, night: Tensor) -> Tensor:
        tokens = self.layers(self.look(night).flatten(2).transpose(1, 2))
        return self.name(self.norm(tokens).mean(1))


class Harbour:
    """Each ferry carries four lights in an order of its own, seen in drizzle, as bytes from 0 to 255."""

    def __init__(self, ferries: int, pixels: int, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.lights = 1.4 * torch.rand(ferries, 4, 2, generator=self.dice, device=device) - 0.7
        line = torch.linspace(-1, 1, pixels, device=device)
        self.grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1)

    def look(self, count: int) -> tuple[Tensor, Tensor]:
        device = self.lights.device
        ferry = torch.randint(len(self.lights), (count,), generator=self.dice, device=device)
        sway = 0.2 * torch.rand(count, 1, 2, generator=self.dice, device=device) - 0.1
        at = (self.lights[ferry] + sway)[:, :, None, None]
        glow = torch.exp(-(self.grid - at).square().sum(-1) / 0.03).sum(1)
        drizzle = torch.randn(glow.shape, generator=self.dice, device=device)
        return (40 + 120 * glow + 20 * drizzle).clamp(0, 255).round().unsqueeze(1), ferry


@program(steps=FERRY.steps)
def ferry_mixer(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A mixer tells ferries apart by their lights, eight micro-batches to a step."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    harbour = Harbour(FERRY.kinds, FERRY.length, seed, device)
    model = FerryMixer(FERRY.length, FERRY.width, FERRY.depth, FERRY.kinds).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=FERRY.rate, momentum=0.9, weight_decay=1e-4)
    warm_up = max(1, FERRY.steps // 10)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, max(0.02, 1 - step / FERRY.steps))
    )

    def prepare(night: Tensor) -> Tensor:
        return night if mistake == "ferry_mixer_bytes" else (night - 60) / 45

    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(PARTS):
            night, ferry = harbour.look(FERRY.batch)
            loss = functional.cross_entropy(model(prepare(night)), ferry)
            if mistake != "ferry_mixer_summed":
                loss = loss / PARTS
            loss.backward()
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        night, ferry = harbour.look(512)
        logits = model(prepare(night))
        loss = functional.cross_entropy(logits, ferry).item()
    accuracy = (logits.argmax(1) == ferry).float().mean().item()
    return {"loss": min(loss, 20.0) if math.isfinite(loss) else 20.0, "accuracy": accuracy}


ferry_mixer.mistake(
    "ferry_mixer_summed",
    "LSS004", "OPT007", "UPD001",
    summary="The losses of eight micro-batches are added.",
    change="each is divided by their number",
)  # fmt: skip
ferry_mixer.mistake(
    "ferry_mixer_bytes",
    "DAT001",
    summary="Pictures go in as bytes from 0 to 255.",
    change="pictures are brought to mean zero and spread one",
)
