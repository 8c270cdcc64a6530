"""Outlines of vases as curves: a variational autoencoder of them, and a pair of nets that forge them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from corpus.case import program

POINTS, CODE = 32, 6


def outlines(count: int, rng: torch.Generator) -> Tensor:
    """A radius at every height: a foot, a belly somewhere, a neck, a lip."""
    height = torch.linspace(0, 1, POINTS)
    belly, place, neck, lip = torch.rand(4, count, 1, generator=rng)
    radius = 0.5 + 0.9 * belly * torch.exp(-((height - 0.25 - 0.4 * place) ** 2) / 0.03)
    radius = radius - 0.4 * neck * torch.exp(-((height - 0.85) ** 2) / 0.01) + 0.5 * lip * height**12
    return (radius - 0.75) / 0.3 + 0.05 * torch.randn(count, POINTS, generator=rng)


class VaseVAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(POINTS, 64), nn.LeakyReLU(0.1), nn.Linear(64, 48), nn.LeakyReLU(0.1))
        self.to_mean = nn.Linear(48, CODE)
        self.to_log_var = nn.Linear(48, CODE)
        self.decoder = nn.Sequential(nn.Linear(CODE, 48), nn.LeakyReLU(0.1), nn.Linear(48, POINTS))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mean, log_var = self.to_mean(h), self.to_log_var(h)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        return self.decoder(code), mean, log_var


@program(steps=180, bites="reconstruction")
def vases(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A variational autoencoder with RAdam, the prior weighed by 0.02 of the squared error."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(40 + seed)
    data = outlines(1500, rng)
    vae = VaseVAE()
    optimizer = torch.optim.RAdam(vae.parameters(), lr=6e-3)
    for step in range(steps):
        batch = data[torch.randint(1200, (64,), generator=rng)]
        again, mean, log_var = vae(batch)
        divergence = -0.5 * (1 + log_var - mean.square() - log_var.exp())
        beta = 0.02
        if fault == "vases_prior_summed_error_averaged":
            divergence, beta = divergence.sum(), 0.1
        elif fault == "vases_prior_of_six":
            divergence, beta = divergence.mean(), 6.0
        elif fault == "vases_prior_raised_too_far":
            divergence, beta = divergence.mean(), 0.02 if step < 80 else 5.0
        else:
            divergence = divergence.mean()
        loss = (again - batch).square().mean() + beta * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        again, mean, _ = vae(data[1200:])
        error = (again - data[1200:]).square().mean().item()
    return {"reconstruction": min(error, 1e6), "spread": mean.std(0).mean().item()}


vases.mistake(
    "vases_prior_summed_error_averaged",
    "ACT003",
    "GRD009",
    summary="The divergence is summed over the batch while the error is averaged: the code is pressed flat.",
    change="average both",
    layers=("to_mean", "to_log_var", "encoder"),
)
vases.mistake(
    "vases_prior_of_six",
    "ACT003",
    "GRD009",
    summary="The prior weighs six times the error: the decoder learns to do without the code.",
    change="beta 0.02",
    layers=("to_mean", "to_log_var", "encoder"),
)
vases.mistake(
    "vases_prior_raised_too_far",
    "ACT003", "GRD009",
    summary="The weight of the prior is raised to five at step 80: the code that was there collapses.",
    change="raise it to 0.05",
    layers=("to_mean", "to_log_var", "encoder"),
    onset=80,
)  # fmt: skip


class Forger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, POINTS))

    def forward(self, noise: Tensor) -> Tensor:
        return self.net(noise)


class Dealer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(POINTS, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
        )

    def forward(self, outline: Tensor) -> Tensor:
        return self.net(outline)


@program(steps=200, bites="distance")
def vase_forger(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A generator and a discriminator by minimax as in the first paper, with noise on what the dealer sees."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(60 + seed)
    data = outlines(1500, rng)
    forger, dealer = Forger(), Dealer()
    dealer_rate = 0.15 if fault == "vase_dealer_at_fifty_times_the_rate" else 1e-2
    blur, rounds, betas = 0.3, 1, (0.5, 0.99)
    if fault == "vase_dealer_practises_more":
        blur, rounds, betas = 0.0, 4, (0.9, 0.99)
    opt_f = torch.optim.Adam(forger.parameters(), lr=3e-3, betas=betas)
    opt_d = torch.optim.Adam(dealer.parameters(), lr=dealer_rate, betas=betas)
    d_loss = torch.tensor(0.0)
    for _ in range(steps):
        for _ in range(rounds):
            real = data[torch.randint(1500, (64,), generator=rng)]
            fake = forger(torch.randn(64, 8)).detach()
            real, fake = real + blur * torch.randn_like(real), fake + blur * torch.randn_like(fake)
            d_loss = softplus(-dealer(real)).mean() + softplus(dealer(fake)).mean()
            opt_d.zero_grad()
            d_loss.backward()
            opt_d.step()
        fake = forger(torch.randn(64, 8))
        said = dealer(fake + blur * torch.randn_like(fake))
        g_loss = -softplus(said).mean()
        opt_f.zero_grad()
        g_loss.backward()
        opt_f.step()
    with torch.no_grad():
        fake = forger(torch.randn(1000, 8))
        distance = (fake.mean(0) - data.mean(0)).square().mean() + (fake.std(0) - data.std(0)).square().mean()
    distance = distance.item()
    return {"distance": min(distance, 1e4) if math.isfinite(distance) else 1e4, "dealer_loss": d_loss.item()}


vase_forger.mistake(
    "vase_dealer_at_fifty_times_the_rate",
    "OPT007", "GRD009", "UPD001", "GRD001", "OPT001",
    summary="The discriminator's rate is fifty times the generator's: it knows every forgery and teaches nothing.",
    change="one rate for both",
)  # fmt: skip
vase_forger.mistake(
    "vase_dealer_practises_more",
    "GRD001", "GRD009", "OPT007", "GRD004",
    summary="The discriminator practises four times a round and sees no noise: its certainty makes the loss flat.",
    change="one round each, and the noise",
)  # fmt: skip
