"""Puppets and their shadows: variational autoencoders, adversaries and a flow over small silhouettes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from corpus.case import program

SIDE = 10
PIXELS = SIDE * SIDE


class Theatre:
    """Draws silhouettes: an ellipse with a hat, of any size, place and tilt."""

    def __init__(self, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(7100 + seed)
        axis = torch.linspace(-1, 1, SIDE)
        self.y, self.x = torch.meshgrid(axis, axis, indexing="ij")

    def show(self, count: int) -> Tensor:
        a, b, tilt, wide = torch.rand(4, count, 1, 1, generator=self.rng)
        a, b, tilt = 0.8 * a - 0.4, 0.8 * b - 0.4, 3 * tilt
        u = (self.x - a) * tilt.cos() + (self.y - b) * tilt.sin()
        v = (self.y - b) * tilt.cos() - (self.x - a) * tilt.sin()
        body = torch.sigmoid(8 * (0.45 + 0.3 * wide - (u**2 + 3 * v**2).sqrt()))
        return body.flatten(1)


class Puppeteer(nn.Module):
    def __init__(self, strings: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PIXELS, 64), nn.SiLU(), nn.Linear(64, 2 * strings))
        self.decoder = nn.Sequential(nn.Linear(strings, 64), nn.SiLU(), nn.Linear(64, PIXELS))

    def forward(self, picture: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(picture).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        prior = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        return self.decoder(z), prior


def redraw(picture: Tensor, logits: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, picture, reduction="none").sum(-1).mean()


@program(steps=200, bites="rebuilt")
def puppet_strings(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A variational autoencoder, both terms summed over their dimensions, the prior at half weight."""
    torch.manual_seed(seed)
    theatre = Theatre(seed)
    model = Puppeteer()
    optimizer = torch.optim.Adamax(model.parameters(), lr=8e-3)
    beta = 0.5
    prior = torch.tensor(0.0)
    for step in range(steps):
        picture = theatre.show(48)
        logits, prior = model(picture)
        rebuilt = redraw(picture, logits)
        if fault == "puppet_pixels_averaged":
            rebuilt = rebuilt / PIXELS  # mean over pixels, but the prior is still a sum
        if fault == "puppet_prior_never_stops":
            beta = 0.5 + max(0, step - 80) * 2.0
        loss = rebuilt + beta * prior
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        picture = theatre.show(200)
        rebuilt = redraw(picture, model(picture)[0]).item()
    return {"loss": rebuilt, "rebuilt": rebuilt, "prior": prior.item()}


puppet_strings.mistake(
    "puppet_pixels_averaged",
    "ACT003", "GRD009",
    summary="The error is a mean over pixels, the prior a sum over strings: the code says nothing about the picture.",
    change="sum the error over pixels",
    layers=("encoder",),
)  # fmt: skip
puppet_strings.mistake(
    "puppet_prior_never_stops",
    "ACT003", "GRD009",
    summary="The weight of the prior grows by two in every step after step 80: the code collapses.",
    change="stop the warm-up at a half",
    layers=("encoder",),
    onset=80,
)  # fmt: skip


def forger(out: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, out))


def critic(seen: int = 2) -> nn.Sequential:
    leak = nn.LeakyReLU(0.2)
    return nn.Sequential(nn.Linear(seen, 64), leak, nn.Linear(64, 64), leak, nn.Linear(64, 1))


def footprints(seed: int) -> Iterator[Tensor]:
    """Points on a ring, where the puppets stood."""
    rng = torch.Generator().manual_seed(7300 + seed)
    while True:
        angle = 2 * math.pi * torch.rand(64, 1, generator=rng)
        yield torch.cat([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(64, 2, generator=rng)


def distance(fake: Tensor) -> float:
    """How far the radii of the forgeries are from one, and how unevenly they go around."""
    radius = (fake.norm(dim=1) - 1).abs().mean()
    return (radius + (fake / fake.norm(dim=1, keepdim=True).clamp(min=1e-6)).mean(0).norm()).item()


@program(steps=250, bites="gap")
def puppet_forgers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Forged silhouettes: a generator and a critic by turns, two optimizers."""
    torch.manual_seed(seed)
    theatre = Theatre(50 + seed)
    model = nn.ModuleDict({"forger": forger(PIXELS), "critic": critic(PIXELS)})
    critic_rate = 1e-2 if fault == "puppet_critic_fifty_times" else 2e-4
    opt_forger = torch.optim.Adam(model["forger"].parameters(), lr=2e-3, betas=(0.5, 0.99))
    opt_critic = torch.optim.Adam(model["critic"].parameters(), lr=critic_rate, betas=(0.5, 0.99))
    bce = nn.functional.binary_cross_entropy_with_logits
    loss_forger = torch.tensor(0.0)
    for _ in range(steps):
        fake = model["forger"](torch.randn(48, 8)).sigmoid()
        for_real, for_fake = model["critic"](theatre.show(48)), model["critic"](fake.detach())
        loss_critic = bce(for_real, torch.ones(48, 1)) + bce(for_fake, torch.zeros(48, 1))
        opt_critic.zero_grad()
        loss_critic.backward()
        opt_critic.step()
        loss_forger = bce(model["critic"](fake), torch.ones(48, 1))
        opt_forger.zero_grad()
        loss_forger.backward()
        opt_forger.step()
    with torch.no_grad():
        real, fake = theatre.show(300), model["forger"](torch.randn(300, 8)).sigmoid()
        gap = (model["critic"](real).sigmoid().mean() - model["critic"](fake).sigmoid().mean()).item()
    away = (real.mean(0) - fake.mean(0)).abs().mean().item()
    return {"loss": min(loss_forger.item(), 1e4), "distance": away, "gap": gap}


puppet_forgers.mistake(
    "puppet_critic_fifty_times",
    "OPT007", "GRD009", "UPD001", "GRD001", "OPT001",
    summary="The critic's rate is fifty times what it should be: it tells all forgeries and teaches nothing.",
    change="2e-4",
    layers=("critic",),
)  # fmt: skip


@program(
    steps=200, adversarial="encoder outputs of almost no variance are collapse: free bits leave each string its share"
)
def puppet_free_bits(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A prior that is warmed up from zero and never asked below half a nat."""
    torch.manual_seed(seed)
    theatre = Theatre(100 + seed)
    model = Puppeteer(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    rebuilt = torch.tensor(0.0)
    for step in range(steps):
        picture = theatre.show(48)
        logits, prior = model(picture)
        rebuilt = redraw(picture, logits)
        loss = rebuilt + min(1.0, step / 100) * prior.clamp(min=2.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": rebuilt.item()}


@program(steps=240, adversarial="a loss below zero has the wrong sign: it is a likelihood of a density above one")
def puppet_flow(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Affine couplings on the footprints; the last layer of each coupling starts at zero."""
    torch.manual_seed(seed)
    real = footprints(200 + seed)
    couplings = nn.ModuleList(nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 2)) for _ in range(6))
    for coupling in couplings:
        assert isinstance(coupling, nn.Sequential)
        nn.init.zeros_(coupling.get_parameter("2.weight"))
        nn.init.zeros_(coupling.get_parameter("2.bias"))
    optimizer = torch.optim.Adam(couplings.parameters(), lr=4e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        u, v = (next(real) * 0.2).chunk(2, 1)
        volume = torch.zeros(64, 1)
        for coupling in couplings:
            scale, shift = coupling(u).chunk(2, 1)
            scale = 2 * torch.tanh(scale)
            u, v = v * scale.exp() + shift, u
            volume = volume + scale
        loss = (0.5 * (u**2 + v**2) + math.log(2 * math.pi) - volume).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=300, adversarial="a loss that never falls does not learn: two players, hinge losses, a spectral norm")
def puppet_duel(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Hinge adversaries: the critic steps twice for each step of the forger."""
    torch.manual_seed(seed)
    real = footprints(300 + seed)
    maker = forger()
    judge = critic()
    for number in (0, 2, 4):
        nn.utils.parametrizations.spectral_norm(judge[number])
    opt_maker = torch.optim.RMSprop(maker.parameters(), lr=5e-4)
    opt_judge = torch.optim.RMSprop(judge.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps // 2 + 1):
        for _ in range(2):
            with torch.no_grad():
                fake = maker(torch.randn(64, 8))
            hinge = (1 - judge(next(real))).relu().mean() + (1 + judge(fake)).relu().mean()
            opt_judge.zero_grad()
            hinge.backward()
            opt_judge.step()
        loss = -judge(maker(torch.randn(64, 8))).mean()
        opt_maker.zero_grad()
        loss.backward()
        opt_maker.step()
    with torch.no_grad():
        away = distance(maker(torch.randn(500, 8)))
    return {"loss": loss.item(), "distance": away}
