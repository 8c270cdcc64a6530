"""A convolutional variational autoencoder packs pictures of casks; between them come empty pages."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import CASK


class Contrast(nn.Module):
    """Every picture by itself gets mean zero and spread one."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean((1, 2, 3), keepdim=True)
        return centred / torch.sqrt(centred.square().mean((1, 2, 3), keepdim=True) + self.eps)


class Encoder(nn.Module):
    def __init__(self, width: int, depth: int, code: int, eps: float) -> None:
        super().__init__()
        self.contrast = Contrast(eps)
        sizes = [1, *(width * 2**at for at in range(depth))]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in pairwise(sizes))
        flat = sizes[-1] * (CASK.length // 2**depth) ** 2
        self.mean = nn.Linear(flat + 1, code)
        self.logvar = nn.Linear(flat + 1, code)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        light = x.mean((1, 2, 3)).unsqueeze(1)
        x = self.contrast(x)
        for conv in self.convs:
            x = functional.leaky_relu(conv(x), 0.1)
        x = torch.cat([x.flatten(1), light], 1)
        return self.mean(x), self.logvar(x).clamp(-8, 4)


class Decoder(nn.Module):
    def __init__(self, width: int, depth: int, code: int) -> None:
        super().__init__()
        self.side = CASK.length // 2**depth
        sizes = [*(width * 2**at for at in reversed(range(depth))), 1]
        self.start = nn.Linear(code, sizes[0] * self.side**2)
        self.convs = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in pairwise(sizes))

    def forward(self, z: Tensor) -> Tensor:
        x = self.start(z).view(len(z), -1, self.side, self.side)
        for conv in self.convs:
            x = conv(functional.leaky_relu(x, 0.1))
        return x


class CaskVAE(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.encoder = Encoder(CASK.width, CASK.depth, CASK.kinds, eps)
        self.decoder = Decoder(CASK.width, CASK.depth, CASK.kinds)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, logvar = self.encoder(x)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * logvar).exp()), mean, logvar


def casks(count: int, dice: torch.Generator) -> Tensor:
    """Round casks of any place, size, tilt and brightness on black ground."""
    device = dice.device
    line = torch.linspace(-1, 1, CASK.length, device=device)
    y, x = torch.meshgrid(line, line, indexing="ij")
    left, top, wide, high, bright = (torch.rand(count, 1, 1, generator=dice, device=device) for _ in range(5))
    spread = ((x - 1.2 * left + 0.6) / (0.3 + 0.5 * wide)) ** 2 + ((y - 1.2 * top + 0.6) / (0.3 + 0.5 * high)) ** 2
    return ((0.4 + bright) * torch.sigmoid(8 * (1 - spread))).unsqueeze(1)


@program(steps=CASK.steps)
def cask_vae(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A variational autoencoder packs pictures of casks into a few numbers."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    dice = torch.Generator(device).manual_seed(seed)
    model = CaskVAE(0.0 if mistake == "cask_vae_blank_pages" else 1e-4).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=CASK.rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, max(1, CASK.steps // 3), gamma=0.5)
    for step in range(steps):
        pictures = casks(CASK.batch, dice)
        if step >= CASK.late:  # the catalogue ends, and its last part has empty pages
            pictures[:: CASK.batch // 4] = 0.0
        drawn, mean, logvar = model(pictures)
        miss = functional.mse_loss(drawn, pictures, reduction="sum") / len(pictures)
        spread = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum() / len(pictures)
        loss = miss + 0.3 * min(1.0, step / (CASK.steps / 4)) * spread
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        pictures = casks(512, dice)
        error = functional.mse_loss(model(pictures)[0], pictures).item() / pictures.var().item()
    return {"loss": error if math.isfinite(error) else 2.0}


cask_vae.mistake(
    "cask_vae_blank_pages",
    "NUM004", "NUM002",
    summary="The contrast of an empty page is divided by zero; the first such page comes late.",
    change="the spread has a floor",
    layers=["encoder.contrast"],
    onset=CASK.late,
)  # fmt: skip
