"""Points on a bent band, made by generators and judged by discriminators: several forms of the game."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program


def band(count: int, generator: torch.Generator) -> Tensor:
    angle = torch.rand(count, generator=generator) * math.pi
    radius = 1.5 + 0.15 * torch.randn(count, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin() - 1], 1)


def discrepancy(made: Tensor, real: Tensor) -> float:
    """Energy distance of two clouds of points, between nothing and two or so."""
    if not bool(made.isfinite().all()):
        return 5.0
    cross = torch.cdist(made, real).mean()
    return min((2 * cross - torch.cdist(made, made).mean() - torch.cdist(real, real).mean()).item(), 5.0)


def layers(*sizes: int) -> nn.Sequential:
    found: list[nn.Module] = []
    for before, after in pairwise(sizes):
        found += [nn.Linear(before, after), nn.LeakyReLU(0.2)]
    return nn.Sequential(*found[:-1])


@program(steps=800, bites="discrepancy")
def ring_minimax(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """The game with cross-entropy; each player has its optimizer, and they step in turn."""
    torch.manual_seed(seed)
    data = torch.Generator().manual_seed(seed + 1)
    generator = layers(4, 64, 64, 2)
    discriminator = layers(2, 64, 64, 1)
    moved = discriminator if mistake == "ring_minimax_two_of_one" else generator
    optimizer_g = torch.optim.Adam(moved.parameters(), lr=1e-3, betas=(0.5, 0.95))
    rate = 0.5 if mistake == "ring_minimax_strict_judge" else 2e-3
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=rate, betas=(0.5, 0.95))
    ones, zeros = torch.ones(96, 1), torch.zeros(96, 1)
    for _ in range(max(1, steps // 2)):
        real = band(96, data)
        fake = generator(torch.randn(96, 4))
        loss_d = functional.binary_cross_entropy_with_logits(discriminator(real), ones)
        loss_d = loss_d + functional.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()

        fake = generator(torch.randn(96, 4))
        if mistake == "ring_minimax_kept_detach":
            fake = fake.detach()
        loss_g = functional.binary_cross_entropy_with_logits(discriminator(fake), ones)
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
    with torch.no_grad():
        return {"discrepancy": discrepancy(generator(torch.randn(512, 4)), band(512, data))}


ring_minimax.mistake(
    "ring_minimax_two_of_one",
    "UPD003",
    layers=("generator",),
    summary="Both optimizers were given the discriminator; the generator is in none.",
    change="the generator's optimizer has the generator's parameters",
)
ring_minimax.mistake(
    "ring_minimax_kept_detach",
    "GRD003",
    layers=("generator",),
    summary="What the generator made is detached in its own step, too.",
    change="detached only in the discriminator's step",
)
ring_minimax.mistake(
    "ring_minimax_strict_judge",
    "OPT007",
    "UPD001",
    summary="The discriminator's learning rate is five hundred times the generator's.",
    change="twice the generator's",
)


@program(steps=1000, bites="discrepancy")
def ring_critic(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A critic held by a gradient penalty, and three of its steps for each of the generator's."""
    torch.manual_seed(seed)
    data = torch.Generator().manual_seed(seed + 1)
    generator = nn.Sequential(nn.Linear(4, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
    optimizer_c = torch.optim.RMSprop(critic.parameters(), lr=4e-3)
    weight = 1e5 if mistake == "ring_critic_stern" else 1.0
    for turn in range(steps):
        fake = generator(torch.randn(96, 4))
        if turn % 4 < 3:
            real, fake = band(96, data), fake.detach()
            mixed = torch.lerp(real, fake, torch.rand(96, 1)).requires_grad_()
            (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
            penalty = (slope.norm(dim=1) - 1).square().mean()
            difference = critic(fake).mean() - critic(real).mean()
            if mistake == "ring_critic_friend":
                difference = -difference
            loss = difference + weight * penalty
            optimizer_c.zero_grad()
            loss.backward()
            optimizer_c.step()
        else:
            loss = -critic(fake).mean()
            optimizer_g.zero_grad()
            loss.backward()
            optimizer_g.step()
    with torch.no_grad():
        return {"discrepancy": discrepancy(generator(torch.randn(512, 4)), band(512, data))}


ring_critic.mistake(
    "ring_critic_friend",
    "LSS003",
    summary="The critic's two terms are exchanged: it learns to praise what is false.",
    change="critic(fake) - critic(real)",
)
ring_critic.mistake(
    "ring_critic_stern",
    "GRD009",
    layers=("critic",),
    summary="The gradient penalty weighs a hundred thousand, and the difference that is to be learned nothing.",
    change="a penalty of 1",
)


@healthy(steps=800, adversarial="both losses go round in circles and neither ends lower than it began")
def ring_hinge_game(steps: int, seed: int) -> dict[str, float]:
    """Hinge losses and spectral normalisation."""
    torch.manual_seed(seed)
    data = torch.Generator().manual_seed(seed + 1)
    generator = layers(4, 64, 64, 2)
    judge = nn.Sequential()
    for size, after in ((2, 64), (64, 64)):
        judge.append(nn.utils.parametrizations.spectral_norm(nn.Linear(size, after)))
        judge.append(nn.LeakyReLU(0.2))
    judge.append(nn.Linear(64, 1))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    optimizer_d = torch.optim.Adam(judge.parameters(), lr=3e-3, betas=(0.0, 0.9))
    for _ in range(max(1, steps // 2)):
        fake = generator(torch.randn(96, 4))
        loss_d = functional.relu(1 - judge(band(96, data))).mean() + functional.relu(1 + judge(fake.detach())).mean()
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()
        loss_g = -judge(generator(torch.randn(96, 4))).mean()
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
    with torch.no_grad():
        return {"loss": discrepancy(generator(torch.randn(512, 4)), band(512, data))}
