"""Healthy trainings of models that generate: their losses rise, swing or fall below zero, and all is well."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F  # noqa: N812 - as its users write it
from sklearn.datasets import load_digits, make_moons
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from corpus.case import program
from corpus.practice.generative.digit_gan import Mint, energy_distance
from corpus.practice.generative.digit_variational_autoencoder import Sketchpad, kl_divergence
from corpus.practice.generative.moons_normalizing_flow import Flow
from corpus.practice.generative.small_picture_diffusion import LEVELS, Denoiser, Diffusion


def digits(low: float = -1.0) -> Tensor:
    pixels = torch.tensor(load_digits(return_X_y=True)[0], dtype=torch.float32) / 16
    return pixels * (1 - low) + low


@program(steps=180, bites="distance", adversarial="a loss below zero has the wrong sign")
def digits_wasserstein(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A Wasserstein GAN with gradient penalty: three steps of the critic for one of the generator."""
    torch.manual_seed(seed)
    images, mint = digits(), Mint()
    critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    opt_c = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.9))
    opt_g = torch.optim.Adam(mint.forger.parameters(), lr=2e-3, betas=(0.0, 0.9))
    g_loss = torch.tensor(0.0)
    for step in range(steps):
        real = images[torch.randint(len(images), (64,))]
        fake = mint.forger(torch.randn(64, 16)).detach()
        between = torch.lerp(real, fake, torch.rand(64, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        c_loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        opt_c.zero_grad()
        c_loss.backward()
        opt_c.step()
        if step % 3 == 2:
            g_loss = -critic(mint.forger(torch.randn(64, 16))).mean()
            opt_g.zero_grad()
            g_loss.backward()
            opt_g.step()
    with torch.no_grad():
        distance = energy_distance(mint.forger(torch.randn(600, 16)), images[:600])
    return {"distance": distance, "loss": g_loss.item()}


@program(steps=200, bites="distance", adversarial="a loss that does not fall has not learned")
def digits_hinge(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GAN with spectral norm and the hinge loss: neither loss falls, the pictures get better."""
    torch.manual_seed(seed)
    images, forger = digits(), Mint().forger
    judge = nn.Sequential(
        spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2),
        spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(64, 1)),
    )  # fmt: skip
    opt_j = torch.optim.Adam(judge.parameters(), lr=4e-3, betas=(0.5, 0.99))
    opt_f = torch.optim.Adam(forger.parameters(), lr=1e-3, betas=(0.5, 0.99))
    f_loss = torch.tensor(0.0)
    for _ in range(steps):
        real, fake = images[torch.randint(len(images), (64,))], forger(torch.randn(64, 16)).detach()
        j_loss = F.relu(1 - judge(real)).mean() + F.relu(1 + judge(fake)).mean()
        opt_j.zero_grad()
        j_loss.backward()
        opt_j.step()
        f_loss = -judge(forger(torch.randn(64, 16))).mean()
        opt_f.zero_grad()
        f_loss.backward()
        opt_f.step()
    with torch.no_grad():
        distance = energy_distance(forger(torch.randn(600, 16)), images[:600])
    return {"distance": distance, "loss": f_loss.item()}


@program(steps=180, adversarial="a loss that crosses zero is wrong")
def moons_below_zero(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A flow over narrow data: the log-density rises above zero, so the loss falls below it."""
    torch.manual_seed(seed)
    points, _ = make_moons(2000, noise=0.04, random_state=seed)
    x = torch.tensor(points, dtype=torch.float32)
    x = (x - x.mean(0)) * 0.25
    flow, losses = Flow(layers=8), []
    optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
    for _ in range(steps):
        loss = -flow.log_prob(x[torch.randint(len(x), (256,))]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-10:]) / len(losses[-10:]), "first": losses[0]}


@program(steps=200, bites="error", adversarial="a loss that rises diverges")
def sketch_warmed_prior(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A VAE whose prior is phased in between steps 60 and 140: the sum rises meanwhile, as it should."""
    torch.manual_seed(seed)
    images, model = digits(0.0), Sketchpad()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        x = images[torch.randint(len(images), (96,))]
        logits, mean, logvar = model(x)
        weight = 0.2 * min(1.0, max(0.0, (step - 60) / 80))
        pixels = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
        loss = pixels + weight * kl_divergence(mean, logvar).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        logits, mean, logvar = model(images)
        error = F.binary_cross_entropy_with_logits(logits, images, reduction="none").sum(1).mean().item()
    return {"error": error, "kl": kl_divergence(mean, logvar).mean().item()}


@program(steps=160, adversarial="parameters that no optimizer holds were forgotten")
def snow_with_average(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A diffusion model and its moving average, which is part of the same module and has no optimizer."""
    torch.manual_seed(seed)
    images, diffusion = digits(), Diffusion()
    both = nn.ModuleDict({"live": Denoiser()})
    both["average"] = copy.deepcopy(both["live"]).requires_grad_(False)
    optimizer = torch.optim.AdamW(both["live"].parameters(), lr=3e-3)
    losses: list[float] = []
    for _ in range(steps):
        x, level = images[torch.randint(len(images), (96,))], torch.randint(LEVELS, (96,))
        noise = torch.randn_like(x)
        loss = F.mse_loss(both["live"](diffusion.spoil(x, level, noise), level), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(both["average"].parameters(), both["live"].parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        losses.append(loss.item())
    return {"loss": sum(losses[-20:]) / len(losses[-20:]), "first": losses[0]}


@program(steps=160)
def snow_velocity(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A diffusion model that predicts the velocity, with a cosine schedule."""
    torch.manual_seed(seed)
    images, diffusion, model = digits(), Diffusion(), Denoiser(width=80)
    optimizer = torch.optim.RAdam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(steps, 2), eta_min=4e-4)
    losses: list[float] = []
    for _ in range(steps):
        x, level = images[torch.randint(len(images), (96,))], torch.randint(LEVELS, (96,))
        noise, keep = torch.randn_like(x), diffusion.keep[level, None]
        velocity = keep.sqrt() * noise - (1 - keep).sqrt() * x
        loss = F.mse_loss(model(diffusion.spoil(x, level, noise), level), velocity)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-20:]) / len(losses[-20:]), "first": losses[0]}


@program(steps=160)
def sketch_cleaned(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A denoising autoencoder of digits with dropout on its input."""
    torch.manual_seed(seed)
    images = digits(0.0)
    model = nn.Sequential(
        nn.Dropout(0.2), nn.Linear(64, 48), nn.ELU(), nn.Linear(48, 16), nn.ELU(), nn.Linear(16, 48), nn.ELU(),
        nn.Linear(48, 64),
    )  # fmt: skip
    optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    for _ in range(steps):
        x = images[torch.randint(len(images), (64,))]
        loss = F.mse_loss(model(x + 0.1 * torch.randn_like(x)), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-10:]) / len(losses[-10:]), "first": losses[0]}
