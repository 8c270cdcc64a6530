"""A small diffusion model on two-dimensional points: predict the noise, keep an average of the weights."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from corpus.case import program


def two_moons(n: int, g: torch.Generator) -> Tensor:
    angle = math.pi * torch.rand(n, generator=g)
    upper = torch.rand(n, generator=g) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x - 0.5, y - 0.25], 1) * 1.4 + 0.05 * torch.randn(n, 2, generator=g)


class TimeEmbedding(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("freqs", torch.exp(torch.linspace(0, 5, dim // 2)))
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        angles = t[:, None] * self.get_buffer("freqs")
        return self.mlp(torch.cat([angles.sin(), angles.cos()], 1))


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, h: Tensor, temb: Tensor) -> Tensor:
        return h + self.fc2(nn.functional.silu(self.fc1(self.norm(h)) + temb))


class Denoiser(nn.Module):
    def __init__(self, dim: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.time = TimeEmbedding(dim)
        self.inp, self.out = nn.Linear(2, dim), nn.Linear(dim, 2)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        nn.init.zeros_(self.out.weight)  # the usual zero start of the last layer
        nn.init.zeros_(self.out.bias)
        self.frozen_time = False

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if self.frozen_time:
            with torch.no_grad():
                temb = self.time(t)
        else:
            temb = self.time(t)
        h = self.inp(x)
        for block in self.blocks:
            h = block(h, temb)
        return self.out(h)


@program(steps=200, bites="loss", adversarial="the last layer starts at zero, so everything below has zero gradient")
def moon_diffusion(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A denoiser of points with a time embedding, zero-initialised output and an average of the weights."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Denoiser()
    model.frozen_time = fault == "time_embedding_without_gradient"
    ema = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99))
    running = 1.0
    start = torch.cat([p.detach().flatten() for p in model.time.parameters()])
    for _ in range(steps):
        x0, t = two_moons(128, g), torch.rand(128, generator=g)
        noise = torch.randn(128, 2, generator=g)
        signal = torch.cos(t * math.pi / 2)[:, None]
        eps = model(signal * x0 + (1 - signal**2).sqrt() * noise, t)
        loss = (eps - noise).square().mean()
        opt.zero_grad()
        (-loss if fault == "gradient_ascent" else loss).backward()
        opt.step()
        with torch.no_grad():
            for averaged, p in zip(ema.parameters(), model.parameters()):
                averaged.lerp_(p, 0.01)
            if fault == "average_copied_back":
                for averaged, p in zip(ema.parameters(), model.parameters()):
                    p.copy_(averaged)
        running = 0.95 * running + 0.05 * min(loss.item(), 1e4)
    moved = (torch.cat([p.detach().flatten() for p in model.time.parameters()]) - start).norm().item()
    return {"loss": running, "time_moved": moved}


moon_diffusion.mistake(
    "time_embedding_without_gradient",
    "GRD003",
    summary="The time embedding is computed under no_grad, so its MLP stays random.",
    change="leave no_grad out",
    layers=("time",),
    bites="time_moved",
    silent=True,
)
moon_diffusion.mistake(
    "gradient_ascent",
    "LSS003", "OPT001",
    summary="backward runs on the negative loss: the error grows without end.",
    change="backward on the loss itself",
)  # fmt: skip
moon_diffusion.mistake(
    "average_copied_back",
    "UPD002", "OPT007", "OPT005", "UPD003",
    summary="The average of the weights is copied back into the model in every step, which undoes 99 % of each update.",
    change="copy the average only for evaluation",
)  # fmt: skip
