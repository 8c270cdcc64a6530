"""Kites in the wind: small outlines squeezed through a variational code, and friends of that idea."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

POINTS = 24


def outlines(seed: int, n: int = 600) -> Tensor:
    """A kite has a length, a width, a lean and a tail: four numbers make 48."""
    g = torch.Generator().manual_seed(seed + 77)
    length, width = (0.5 + torch.rand(n, 1, generator=g) for _ in range(2))
    lean, tail = (torch.randn(n, 1, generator=g) for _ in range(2))
    t = torch.linspace(0, 6.283, POINTS)[None]
    x = width * torch.cos(t) + 0.5 * lean * torch.sin(t)
    y = length * torch.sin(t) + 0.3 * tail * torch.cos(3 * t)
    flat = torch.cat([x, y], 1) + 0.03 * torch.randn(n, 2 * POINTS, generator=g)
    return (flat - flat.mean(0)) / flat.std()


class KiteVAE(nn.Module):
    def __init__(self, code: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2 * POINTS, 64), nn.ELU(), nn.Linear(64, 32), nn.ELU())
        self.mu = nn.Linear(32, code)
        self.logvar = nn.Linear(32, code)
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.ELU(), nn.Linear(32, 64), nn.ELU(), nn.Linear(64, 48))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar


def divergence(mu: Tensor, logvar: Tensor) -> Tensor:
    """Per code entry and example, from the standard normal."""
    return 0.5 * (mu.square() + logvar.exp() - 1 - logvar)


@program(steps=180, bites="error")
def kites(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A VAE with a prior of one hundredth, error and divergence both averaged over all entries."""
    torch.manual_seed(seed)
    data = outlines(seed)
    vae = KiteVAE()
    optimizer = torch.optim.Adam(vae.parameters(), lr=3e-3)
    first, error_seen, kl_seen = 0.0, 1.0, 0.0
    for step in range(steps):
        x = data[torch.randint(len(data), (50,))]
        out, mu, logvar = vae(x)
        error = fn.mse_loss(out, x)
        beta = 0.02
        if fault == "kites_prior_of_ten":
            beta = 10.0
        if fault == "kites_prior_climbs_on" and step > 60:
            beta = 0.02 + 0.25 * (step - 60)  # no upper bound for the warm-up
        kl = divergence(mu, logvar)
        penalty = kl.sum(0).sum() if fault == "kites_divergence_summed" else kl.mean()
        loss = error + beta * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        error_seen = error.item() if step == 0 else 0.9 * error_seen + 0.1 * error.item()
        kl_seen = kl.mean().item()
    return {"loss": error_seen, "first": first, "error": error_seen, "kl": kl_seen}


kites.mistake(
    "kites_prior_of_ten",
    "ACT003", "GRD009",
    summary="The prior weighs ten beside an averaged error: the code says nothing.",
    change="a weight of 0.02",
    layers=("mu", "logvar", "encoder", "decoder"),
)  # fmt: skip
kites.mistake(
    "kites_prior_climbs_on",
    "ACT003", "GRD009",
    summary="The weight of the prior is warmed up from step 60 on and never stops climbing.",
    change="stop the warm-up",
    layers=("mu", "logvar", "encoder", "decoder"),
    onset=60,
)  # fmt: skip
kites.mistake(
    "kites_divergence_summed",
    "ACT003", "GRD009",
    summary="The divergence is summed over batch and code while the error is a mean: three hundred times more.",
    change="average both",
    layers=("mu", "logvar", "encoder", "decoder"),
)  # fmt: skip


@program(steps=150, bites="error", adversarial="most of the code's entries stay at the prior: collapsed representation")
def kites_wide_code(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Twenty-four code entries for four numbers, a prior that warms up: the entries not needed are switched off."""
    torch.manual_seed(seed)
    data = outlines(seed)
    vae = KiteVAE(code=24)
    optimizer = torch.optim.Adam(vae.parameters(), lr=3e-3)
    first, error_seen = 0.0, 0.0
    for step in range(steps):
        x = data[torch.randint(len(data), (50,))]
        out, mu, logvar = vae(x)
        error = fn.mse_loss(out, x)
        loss = error + 0.002 * min(1.0, step / 60) * divergence(mu, logvar).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        error_seen = error.item() if step == 0 else 0.9 * error_seen + 0.1 * error.item()
    return {"loss": error_seen, "first": first, "error": error_seen}


@program(
    steps=150,
    bites="error",
    adversarial="the decoder's weight is the encoder's, transposed: one gradient for two layers",
)
def kites_tied_mirror(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An autoencoder that uses its own matrix backwards; RMSprop."""
    torch.manual_seed(seed)
    data = outlines(seed)
    inward = nn.Linear(48, 8)
    outward = nn.Parameter(torch.zeros(48))
    optimizer = torch.optim.RMSprop([*inward.parameters(), outward], lr=2e-3)
    first, smooth = 0.0, 0.0
    for step in range(steps):
        x = data[torch.randint(len(data), (50,))]
        loss = fn.mse_loss(fn.linear(inward(x), inward.weight.T, outward), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    return {"loss": smooth, "first": first, "error": smooth}


@program(steps=150)
def kites_vector_quantised(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four words of a codebook of sixteen describe a kite; gradients go straight through."""
    torch.manual_seed(seed)
    data = outlines(seed)
    encoder = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 16))
    decoder = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 48))
    codebook = nn.Embedding(16, 4)
    nn.init.normal_(codebook.weight, std=0.3)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *codebook.parameters()], lr=3e-3)
    first, smooth = 0.0, 0.0
    for step in range(steps):
        x = data[torch.randint(len(data), (64,))]
        z = encoder(x).view(-1, 4)
        words = codebook(torch.cdist(z.detach(), codebook.weight.detach()).argmin(1))
        through = z + (words - z).detach()
        out = decoder(through.view(-1, 16))
        error = fn.mse_loss(out, x)
        loss = error + fn.mse_loss(words, z.detach()) + 0.25 * fn.mse_loss(z, words.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    return {"loss": smooth, "first": first}
