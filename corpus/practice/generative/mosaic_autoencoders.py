"""Mosaics of eight by eight tiles, and networks that squeeze them into a few numbers and lay them again."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from corpus.case import program

TILES, CODE = 64, 6


def lay(count: int, g: torch.Generator) -> Tensor:
    """A tilted edge and a bright spot: five numbers make a mosaic."""
    grid = torch.linspace(-1, 1, 8)
    yy, xx = grid.view(1, 8, 1), grid.view(1, 1, 8)
    angle, shift = 2 * math.pi * torch.rand(count, 1, 1, generator=g), torch.rand(count, 1, 1, generator=g) - 0.5
    edge = torch.sigmoid(6 * (xx * angle.cos() + yy * angle.sin() - shift))
    cx, cy = (1.6 * torch.rand(2, count, 1, 1, generator=g) - 0.8).unbind(0)
    spot = torch.exp(-6 * ((xx - cx) ** 2 + (yy - cy) ** 2))
    return (0.6 * edge + 0.8 * spot - 0.4).flatten(1)


class TileVAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(TILES, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU())
        self.to_mean = nn.Linear(64, CODE)
        self.to_logvar = nn.Linear(64, CODE)
        self.decoder = nn.Sequential(nn.Linear(CODE, 64), nn.ReLU(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, TILES))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The reconstruction, and the divergence from the prior for every number of the code."""
        h = self.encoder(x)
        mean, logvar = self.to_mean(h), self.to_logvar(h).clamp(-8, 4)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        return self.decoder(z), 0.5 * (mean**2 + logvar.exp() - 1 - logvar)


def assess(model: TileVAE, seed: int) -> dict[str, float]:
    x = lay(400, torch.Generator().manual_seed(seed + 3000))
    with torch.no_grad():
        again, divergence = model(x)
    return {"loss": 100 * fn.mse_loss(again, x).item(), "nats": divergence.sum(1).mean().item()}


@program(steps=180)
def mosaic_code(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A variational autoencoder: error and divergence are both summed over a mosaic; the prior weighs little."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = TileVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    beta = 0.02
    for step in range(steps):
        x = lay(64, g)
        again, divergence = model(x)
        if fault == "mosaic_prior_grows_for_ever" and step >= 60:  # meant: up to 0.02
            beta = 0.02 + 0.05 * (step - 60)
        if fault == "mosaic_error_per_tile":
            loss = fn.mse_loss(again, x) + 0.5 * divergence.sum(1).mean()
        else:
            loss = (again - x).square().sum(1).mean() + beta * divergence.sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return assess(model, seed)


mosaic_code.mistake(
    "mosaic_error_per_tile",
    "ACT003", "GRD009",
    summary="The error is averaged over tiles and the divergence is summed: the code says nothing any more.",
    change="sum both",
    layers=("encoder", "to_mean", "to_logvar", "decoder"),
)  # fmt: skip
mosaic_code.mistake(
    "mosaic_prior_grows_for_ever",
    "ACT003", "GRD009", "OPT001",
    summary="From step 60 the weight of the prior is annealed upwards without an end.",
    change="stop at the weight that was meant",
    layers=("encoder", "to_mean", "to_logvar", "decoder"),
    onset=60,
)  # fmt: skip


@program(steps=180, adversarial="a loss that rises is diverging")
def mosaic_prior_warmed_up(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The prior's weight grows from nothing to its place between steps 40 and 120: the loss rises as planned."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = TileVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        x = lay(64, g)
        again, divergence = model(x)
        beta = 0.06 * min(1.0, max(0, step - 40) / 80)
        loss = (again - x).square().sum(1).mean() + beta * divergence.sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return assess(model, seed)


class Quantised(nn.Module):
    """An autoencoder whose code is two entries of a book; gradients pass straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(TILES, 96), nn.ReLU(), nn.Linear(96, 16))
        self.book = nn.Parameter(torch.randn(32, 4))
        self.decoder = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, TILES))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raw = self.encoder(x).view(len(x), 4, 4)
        nearest = torch.cdist(raw.flatten(0, 1), self.book).argmin(1)
        entry = self.book[nearest].view_as(raw)
        pull = fn.mse_loss(entry, raw.detach()) + 0.25 * fn.mse_loss(raw, entry.detach())
        return self.decoder((raw + (entry - raw).detach()).flatten(1)), pull


@program(steps=180, adversarial="rows of a table that are hardly used are a mistake, and so is a detach")
def mosaic_by_the_book(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Vector quantisation with a straight-through gradient and a commitment loss."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Quantised()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x = lay(64, g)
        again, pull = model(x)
        loss = 10 * fn.mse_loss(again, x) + pull
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=180, adversarial="outputs that hardly change with the input have collapsed")
def mosaic_cleaned(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A denoiser that predicts a small correction: its last layer starts at zero."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(TILES, 128), nn.LeakyReLU(0.1), nn.Linear(128, 128), nn.LeakyReLU(0.1))
    last = nn.Linear(128, TILES)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    model = nn.Sequential(net, last)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        clean = lay(64, g)
        noisy = clean + 0.3 * torch.randn(clean.shape, generator=g)
        loss = fn.mse_loss(noisy + model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": 100 * loss.item()}
