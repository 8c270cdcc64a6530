"""Generators of points on a ring: a Wasserstein GAN with gradient penalty, and an ordinary one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program
from undertow.demos.case import Fault, sick

BATCH = 64


def ring(count: int) -> Tensor:
    """Eight blobs on a circle of radius one and a half."""
    angle = torch.randint(8, (count,)) * (math.pi / 4)
    return 1.5 * torch.stack([angle.cos(), angle.sin()], 1) + 0.08 * torch.randn(count, 2)


def batches() -> Iterator[Tensor]:
    while True:
        yield ring(BATCH)


def energy_distance(real: Tensor, fake: Tensor) -> float:
    """Zero where both come from the same distribution; ten where the generator is broken."""
    between = torch.cdist(real, fake).mean()
    within = torch.cdist(real, real).mean() + torch.cdist(fake, fake).mean()
    return torch.nan_to_num(2 * between - within, nan=10.0, posinf=10.0).clamp(max=10).item()


def make_generator() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2))
        self.score = nn.Linear(64, 1)
        nn.init.zeros_(self.score.weight)  # neutral to begin with
        nn.init.zeros_(self.score.bias)

    def forward(self, points: Tensor) -> Tensor:
        return self.score(self.body(points)).squeeze(1)


def gradient_penalty(critic: Critic, real: Tensor, fake: Tensor, epsilon: float) -> Tensor:
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * fake).requires_grad_()
    slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
    length = (slope.square().sum(1) + epsilon).sqrt()  # at fault: root_of_a_flat_critic
    return (length - 1).square().mean()


@program(steps=1000, bites="distance")
def ring_wasserstein(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Wasserstein GAN with gradient penalty: three steps of the critic for one of the generator."""
    torch.manual_seed(seed)
    generator, critic = make_generator(), Critic()
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    epsilon = 0.0 if mistake == "root_of_a_flat_critic" else 1e-12
    weight = 5e5 if mistake == "penalty_above_all" else 5.0  # at fault: penalty_above_all
    data = batches()
    for _ in range(steps):
        fake = generator(torch.randn(BATCH, 4)).detach()
        for _ in range(3):
            real = next(data)
            penalty = gradient_penalty(critic, real, fake, epsilon)
            loss = critic(fake).mean() - critic(real).mean() + weight * penalty  # at fault: penalty_above_all
            critic_optimizer.zero_grad()
            loss.backward()
            critic_optimizer.step()
        if mistake != "generator_step_on_old_samples":
            fake = generator(torch.randn(BATCH, 4))
        generator_loss = -critic(fake).mean()  # at fault: generator_step_on_old_samples
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
    with torch.no_grad():
        return {"distance": energy_distance(ring(1000), generator(torch.randn(1000, 4)))}


ring_wasserstein.mistake(
    "root_of_a_flat_critic", "NUM001", layers=("critic",),
    summary="The penalty's root has no epsilon, and the critic starts flat: its slope is zero, the root's is infinite.",
    change="(slope².sum() + 1e-12).sqrt()",
)  # fmt: skip
ring_wasserstein.mistake(
    "penalty_above_all", "GRD009",
    summary="The gradient penalty weighs 500,000 instead of 5, so that the critic learns nothing but its slope.",
    change="weight 5",
)  # fmt: skip
ring_wasserstein.mistake(
    "generator_step_on_old_samples", "GRD003", layers=("generator",),
    summary="The generator's loss is computed on the detached samples that the critic was trained on.",
    change="fresh samples with a graph",
)  # fmt: skip


@sick(
    "LSS001", steps=1000, bites="distance", layers=("discriminator",), architecture="GAN",
    change="the discriminator gives logits",
)  # fmt: skip
def sigmoid_in_the_discriminator(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The discriminator ends in a sigmoid, and the loss is the one for logits."""
    torch.manual_seed(seed)
    parts: list[nn.Module] = [
        nn.Linear(2, 64),
        nn.LeakyReLU(0.2),
        nn.Linear(64, 64),
        nn.LeakyReLU(0.2),
        nn.Linear(64, 1),
    ]
    if fault:
        parts.append(nn.Sigmoid())  # at fault: sigmoid_in_the_discriminator
    generator, discriminator = make_generator(), nn.Sequential(*parts)
    optimizers = {
        "d": torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
        "g": torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.999)),
    }
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    for turn in range(steps):
        fake = generator(torch.randn(BATCH, 4))
        if turn % 2 == 0:
            loss = criterion(discriminator(ring(BATCH)), ones) + criterion(discriminator(fake.detach()), zeros)
        else:
            loss = criterion(discriminator(fake), ones)
        optimizer = optimizers["d" if turn % 2 == 0 else "g"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return {"distance": energy_distance(ring(1000), generator(torch.randn(1000, 4)))}


@healthy(steps=4000, adversarial="weights cut to ±0.1 at every step, losses of either sign that rise")
def clipped_wasserstein(steps: int, seed: int) -> dict[str, float]:
    """The first Wasserstein GAN: RMSprop, and the critic's weights clipped after every step."""
    torch.manual_seed(seed)
    generator = make_generator()
    critic = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    generator_optimizer = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
    critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
    for turn in range(steps):
        fake = generator(torch.randn(BATCH, 4))
        if turn % 4 < 3:
            critic_optimizer.zero_grad()
            (critic(fake.detach()).mean() - critic(ring(BATCH)).mean()).backward()
            critic_optimizer.step()
            with torch.no_grad():
                for weight in critic.parameters():
                    weight.clamp_(-0.1, 0.1)
        else:
            generator_optimizer.zero_grad()
            (-critic(fake).mean()).backward()
            generator_optimizer.step()
    with torch.no_grad():
        return {"loss": energy_distance(ring(1000), generator(torch.randn(1000, 4)))}


@healthy(
    steps=2500, adversarial="a loss that stands still at ln 4 while both sides learn; the real side penalised alone"
)
def penalised_on_real_points(steps: int, seed: int) -> dict[str, float]:
    """A non-saturating GAN with the R1 penalty at every fourth turn, and a running mean of the generator."""
    torch.manual_seed(seed)
    generator, averaged, critic = make_generator(), make_generator().requires_grad_(False), Critic()
    averaged.load_state_dict(generator.state_dict())
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.99))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.99))
    for turn in range(steps // 2):
        real, fake = ring(BATCH).requires_grad_(turn % 4 == 0), generator(torch.randn(BATCH, 4))
        judged = critic(real)
        loss = functional.softplus(-judged).mean() + functional.softplus(critic(fake.detach())).mean()
        if turn % 4 == 0:
            slope = torch.autograd.grad(judged.sum(), real, create_graph=True)[0]
            loss = loss + 0.1 * slope.square().sum(1).mean()
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        functional.softplus(-critic(fake)).mean().backward()
        generator_optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(averaged.parameters(), generator.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
    with torch.no_grad():
        return {"loss": energy_distance(ring(1000), averaged(torch.randn(1000, 4)))}
