"""Two parties that pull in different directions: a Wasserstein GAN, and training against a domain classifier."""

from __future__ import annotations

import torch
from torch import Tensor, autograd, nn

from corpus.case import program


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(8, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 2)
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.main(z)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x)


def eight_gaussians(n: int) -> Tensor:
    angle = torch.randint(8, (n,)) * torch.pi / 4
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


def gradient_penalty(critic: Critic, real: Tensor, fake: Tensor) -> Tensor:
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (gradient,) = autograd.grad(critic(between).sum(), between, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).square().mean()


@program(steps=240, bites="distance", adversarial="negative losses, a double backward, two optimizers in turn")
def wasserstein_gan(steps: int, seed: int, fault: str) -> dict[str, float]:
    """WGAN-GP on eight Gaussians, three critic steps to one of the generator; a step is either."""
    torch.manual_seed(seed)
    generator, critic = Generator(), Critic()
    opt_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.9))
    start = torch.cat([p.detach().flatten() for p in generator.parameters()])
    for step in range(steps):
        if step % 4 == 3:
            fake = generator(torch.randn(64, 8))
            if fault == "generator_sees_detached_samples":
                fake = fake.detach()
            opt_g.zero_grad()
            (-critic(fake).mean()).backward()
            opt_g.step()
        else:
            real, fake = eight_gaussians(64), generator(torch.randn(64, 8)).detach()
            loss = critic(fake).mean() - critic(real).mean() + 5 * gradient_penalty(critic, real, fake)
            opt_c.zero_grad()
            loss.backward()
            opt_c.step()
            if fault == "critic_clamped_to_nothing":
                for p in critic.parameters():
                    p.data.clamp_(-1e-5, 1e-5)
    with torch.no_grad():
        samples = generator(torch.randn(512, 8))
    distance = (samples.norm(dim=1) - 1).abs().mean().item()
    moved = (torch.cat([p.detach().flatten() for p in generator.parameters()]) - start).norm().item()
    return {
        "distance": distance,
        "generator_moved": moved,
        "critic_size": max(p.abs().max().item() for p in critic.parameters()),
    }


class ReverseGradient(autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, strength: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return -ctx.strength * gradient, None


class DomainAdversarialNetwork(nn.Module):
    def __init__(self, reverse_labels: bool, strength: float) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.label_head = nn.Linear(24, 3)
        self.domain_head = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))
        self.reverse_labels, self.strength = reverse_labels, strength

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        f = self.features(x)
        reversed_f = ReverseGradient.apply(f, self.strength)
        if self.reverse_labels:
            return self.label_head(reversed_f), self.domain_head(f)
        return self.label_head(f), self.domain_head(reversed_f)


@program(steps=200, bites="accuracy", adversarial="the features are trained against one of the two losses, on purpose")
def domain_adversarial(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A gradient-reversal layer: features should tell three classes and not the domain."""
    torch.manual_seed(seed)
    centres = 0.6 * torch.randn(3, 12, generator=torch.Generator().manual_seed(8))
    shift = torch.zeros(12)
    shift[0] = 2.0
    strength = 300.0 if fault == "reversal_far_too_strong" else 0.3
    net = DomainAdversarialNetwork(fault == "labels_behind_the_reversal", strength)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        y, d = torch.randint(3, (64,)), torch.randint(2, (64,))
        x = centres[y] + d[:, None] * shift + torch.randn(64, 12)
        labels, domains = net(x)
        loss = nn.functional.cross_entropy(labels[d == 0], y[d == 0]) + nn.functional.cross_entropy(domains, d)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
    y = torch.randint(3, (512,))
    with torch.no_grad():
        accuracy = (net(centres[y] + torch.randn(512, 12))[0].argmax(1) == y).float().mean().item()
    return {"accuracy": accuracy}


wasserstein_gan.mistake(
    "generator_sees_detached_samples",
    "GRD003",
    summary="The generator's own step uses detached samples: no gradient ever reaches it.",
    change="no .detach() in the generator's step",
    layers=("generator",),
    bites="generator_moved",
)
wasserstein_gan.mistake(
    "critic_clamped_to_nothing",
    "WGT005", "GRD001", "UPD002",
    summary="After each step the critic's weights are clamped to ±0.00001 through `.data`.",
    change="rely on the gradient penalty",
    layers=("critic",),
    bites="critic_size",
)  # fmt: skip
domain_adversarial.mistake(
    "reversal_far_too_strong",
    "GRD009", "OPT001", "OPT005",
    summary="The reversed gradient is multiplied by 300: the domain loss decides everything, the labels nothing.",
    change="a strength of about 0.3",
)  # fmt: skip
domain_adversarial.mistake(
    "labels_behind_the_reversal",
    "GRD009", "LSS003", "OPT005", "OPT001",
    summary="The two heads are swapped: the features are trained against the labels.",
    change="the reversal before the domain head",
)  # fmt: skip
