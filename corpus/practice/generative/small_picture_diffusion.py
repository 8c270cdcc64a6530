"""Denoising diffusion of small pictures: sixteen noise levels, one residual network that is told the level."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as its users write it
from sklearn.datasets import load_digits
from torch import Tensor, nn

from corpus.case import program

LEVELS = 16


class ResidualLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.level = nn.Linear(32, width)
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h: Tensor, e: Tensor) -> Tensor:
        return h + self.down(F.silu(self.up(self.norm(h)) + self.level(e)))


class Denoiser(nn.Module):
    def __init__(self, width: int = 96, depth: int = 3) -> None:
        super().__init__()
        self.levels = nn.Embedding(LEVELS, 32)
        self.enter = nn.Linear(64, width)
        self.layers = nn.ModuleList(ResidualLayer(width) for _ in range(depth))
        self.leave = nn.Linear(width, 64)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        e, h = self.levels(level), self.enter(x)
        for layer in self.layers:
            h = layer(h, e)
        return self.leave(h)


class Diffusion:
    def __init__(self) -> None:
        self.keep = torch.cos(torch.linspace(0.1, 1.45, LEVELS)) ** 2

    def spoil(self, x: Tensor, level: Tensor, noise: Tensor) -> Tensor:
        keep = self.keep[level, None]
        return keep.sqrt() * x + (1 - keep).sqrt() * noise


@program(steps=200)
def snowfall(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A small diffusion model learns the noise in pictures of digits; AdamW, constant rate."""
    torch.manual_seed(seed)
    pixels = torch.tensor(load_digits(return_X_y=True)[0], dtype=torch.float32) / 8 - 1
    if fault == "snow_bytes":
        pixels = (pixels + 1) * 127.5
    model, diffusion = Denoiser(), Diffusion()
    rate = 3e-6 if fault == "snow_rate_of_three_millionths" else 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, eps=1.0 if fault == "snow_eps_of_one" else 1e-8)
    recent: list[float] = []
    for step in range(steps):
        x = pixels[torch.randint(len(pixels), (96,))]
        level = torch.randint(LEVELS, (96,))
        noise = torch.randn_like(x)
        spoiled = diffusion.spoil(x, level, noise)
        if fault == "snow_other_noise":
            noise = torch.randn_like(x)  # meant: the noise that was added
        if fault == "snow_decay_of_eighty" and step >= 60:
            for group in optimizer.param_groups:
                group["weight_decay"] = 80.0
        loss = F.mse_loss(model(spoiled, level), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent = [*recent[-19:], loss.item()]
    return {"loss": sum(recent) / len(recent)}


snowfall.mistake(
    "snow_other_noise",
    "DAT004", "OPT005",
    summary="The target is a noise drawn anew, not the one that was added to the picture.",
    change="predict the noise that was added",
)  # fmt: skip
snowfall.mistake(
    "snow_eps_of_one",
    "OPT008", "UPD002",
    summary="Adam's eps of one swallows every second moment.",
    change="eps=1e-8",
)  # fmt: skip
snowfall.mistake(
    "snow_rate_of_three_millionths",
    "OPT007", "UPD002", "OPT005",
    summary="The rate is a thousand times too low.",
    change="3e-3",
)  # fmt: skip
snowfall.mistake(
    "snow_bytes",
    "DAT001",
    summary="The pictures are bytes from 0 to 255; the noise beside them is one.",
    change="scale to -1 … 1",
)
snowfall.mistake(
    "snow_decay_of_eighty",
    "OPT008", "WGT005",
    summary="A change of settings at step 60 sets weight_decay to 80.",
    change="weight_decay=0.01",
    onset=60,
)  # fmt: skip
