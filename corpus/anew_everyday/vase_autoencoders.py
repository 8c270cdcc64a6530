"""Autoencoders of vase profiles: variational, with a codebook, and one judged by similarity."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program
from undertow.demos.case import Fault, sick

POINTS = 40


def profiles(seed: int, count: int) -> Tensor:
    """Outlines of vases: three waves with random sizes, and a little noise."""
    g = torch.Generator().manual_seed(seed)
    height = torch.linspace(0, math.pi, POINTS)
    waves = torch.stack([torch.sin((n + 1) * height) for n in range(3)])
    sizes = torch.randn(count, 3, generator=g) * torch.tensor([1.0, 0.7, 0.5])
    return sizes @ waves + 0.05 * torch.randn(count, POINTS, generator=g)


def scratched(outlines: Tensor) -> Tensor:
    """With strong fine scratches, the same kind on every vase."""
    height = torch.linspace(0, math.pi, POINTS)
    waves = torch.stack([torch.sin((n + 9) * height) for n in range(6)])
    return outlines + 1.2 * torch.randn(len(outlines), 6) @ waves


class Variational(nn.Module):
    def __init__(self, code: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(POINTS, 64), nn.ReLU(), nn.Linear(64, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, POINTS))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(z), mean, log_variance


@program(steps=700, bites="error")
def vase_variational(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Variational autoencoder with a Gaussian likelihood of known noise."""
    torch.manual_seed(seed)
    data = profiles(seed, 2000)
    model = Variational()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        x = data[torch.randint(len(data), (96,))]
        guess, mean, log_variance = model(x)
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        if mistake == "vases_mean_against_sum":
            reconstruction = F.mse_loss(guess, x)  # at fault: vases_mean_against_sum
        else:
            reconstruction = (guess - x).square().sum(-1).mean() / (2 * 0.2**2)
        loss = reconstruction + kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test = profiles(seed + 4, 500)
    with torch.no_grad():
        guess, mean, _ = model(test)
    return {"error": F.mse_loss(guess, test).item() / test.var().item(), "spread": mean.std(0).mean().item()}


vase_variational.mistake(
    "vases_mean_against_sum",
    "ACT003",
    "GRD009",
    summary="The error is averaged over points and the divergence summed over the code: the code says nothing.",
    change="both summed, and the error divided by the noise",
    layers=("encoder",),
)


class Codebook(nn.Module):
    """Every part of a code becomes the nearest of 32 vectors."""

    def __init__(self, size: int, width: int, cut: bool) -> None:
        super().__init__()
        self.vectors = nn.Embedding(size, width)
        nn.init.normal_(self.vectors.weight, std=0.5)
        self.cut = cut

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if self.cut:
            z = z.detach()  # at fault: vases_codebook_cuts_the_graph
        chosen = self.vectors(torch.cdist(z, self.vectors.weight).argmin(-1))
        pull = F.mse_loss(chosen, z.detach()) + 0.25 * F.mse_loss(z, chosen.detach())
        return z + (chosen - z).detach(), pull


class Quantised(nn.Module):
    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(POINTS, 64), nn.ReLU(), nn.Linear(64, 12))
        self.codebook = Codebook(32, 3, cut)
        self.decoder = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, POINTS))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        chosen, pull = self.codebook(self.encoder(x).view(len(x), 4, 3))
        return self.decoder(chosen.flatten(1)), pull


@sick("GRD003", steps=700, change="no detach", layers=("encoder",), bites="error", architecture="autoencoder")
def vases_codebook_cuts_the_graph(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The codebook detaches what it is given first of all: the encoder that should clean outlines learns nothing."""
    torch.manual_seed(seed)
    data = profiles(seed, 2000)
    model = Quantised(cut=bool(fault))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        x = data[torch.randint(len(data), (96,))]
        guess, pull = model(scratched(x))
        loss = F.mse_loss(guess, x) + pull
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test = profiles(seed + 4, 500)
    with torch.no_grad():
        return {"error": F.mse_loss(model(scratched(test))[0], test).item() / test.var().item(), "loss": loss.item()}


def similarity(guess: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity of outlines in windows of eight points; 1 where they are the same."""
    a, b = guess.unfold(1, 8, 4), truth.unfold(1, 8, 4)
    ma, mb = a.mean(-1), b.mean(-1)
    covariance = ((a - ma[..., None]) * (b - mb[..., None])).mean(-1)
    level = (2 * ma * mb + 0.01) / (ma.square() + mb.square() + 0.01)
    return (level * (2 * covariance + 0.03) / (a.var(-1) + b.var(-1) + 0.03)).mean()


def dissimilarity(guess: Tensor, truth: Tensor) -> Tensor:
    return 1 - similarity(guess, truth)


@sick("LSS003", steps=500, change="1 - similarity", bites="unlike", architecture="autoencoder")
def vases_similarity_minimised(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A similarity is returned as if it were a loss: training makes the copies as unlike as can be."""
    torch.manual_seed(seed)
    data = profiles(seed, 2000)
    model = nn.Sequential(
        nn.Linear(POINTS, 48), nn.SiLU(), nn.Linear(48, 6), nn.Linear(6, 48), nn.SiLU(), nn.Linear(48, POINTS)
    )
    criterion = similarity if fault else dissimilarity  # at fault: vases_similarity_minimised
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        x = data[torch.randint(len(data), (96,))]
        loss = criterion(model(x + 0.1 * torch.randn_like(x)), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test = profiles(seed + 4, 500)
    with torch.no_grad():
        return {"unlike": 1 - similarity(model(test), test).item(), "loss": loss.item()}
