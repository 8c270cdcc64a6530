"""Variational autoencoders of small pictures, as a class with a config."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program
from undertow.demos.data import glyphs


@dataclass
class VAEConfig:
    latent: int = 6
    width: int = 96
    kl_weight: float = 1.0
    kl_reduction: str = "batchmean"
    decoder_sigmoid: bool = False
    deep_sigmoid_encoder: bool = False


def brightness(seed: int, count: int = 1024) -> Tensor:
    """Pictures between 0 and 1, as a Bernoulli decoder wants them."""
    return torch.sigmoid(3 * glyphs(seed, count, noise=0.2)[0])


class VAE(nn.Module):
    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        if config.deep_sigmoid_encoder:
            sizes = [64] + [config.width] * 8
            layers: list[nn.Module] = []
            for fan_in, fan_out in pairwise(sizes):
                layers += [nn.Linear(fan_in, fan_out), nn.Sigmoid()]  # at fault: eight_sigmoids_deep
            self.encoder = nn.Sequential(*layers)
        else:
            self.encoder = nn.Sequential(nn.Linear(64, config.width), nn.ReLU(), nn.Linear(config.width, config.width))
        self.moments = nn.Linear(config.width, 2 * config.latent)
        decoder: list[nn.Module] = [nn.Linear(config.latent, config.width), nn.ReLU(), nn.Linear(config.width, 64)]
        if config.decoder_sigmoid:
            decoder.append(nn.Sigmoid())  # at fault: sigmoid_kept_in_the_decoder
        self.decoder = nn.Sequential(*decoder)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.moments(self.encoder(pictures)).chunk(2, 1)
        latent = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        return self.decoder(latent), mean, log_variance

    def loss(self, pictures: Tensor) -> Tensor:
        logits, mean, log_variance = self(pictures)
        reconstruction = functional.binary_cross_entropy_with_logits(logits, pictures, reduction="sum") / len(pictures)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp())
        if self.config.kl_reduction == "sum":
            kl = divergence.sum()  # at fault: divergence_of_the_whole_batch
        else:
            kl = divergence.sum(1).mean()
        return reconstruction + self.config.kl_weight * kl

    def reconstruct(self, pictures: Tensor) -> Tensor:
        mean = self.moments(self.encoder(pictures)).chunk(2, 1)[0]
        decoded = self.decoder(mean)
        return decoded if self.config.decoder_sigmoid else decoded.sigmoid()


def fit(model: VAE, pictures: Tensor, steps: int) -> float:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = model.loss(pictures[torch.randint(len(pictures), (64,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@program(steps=1500, bites="explained")
def glyph_vae(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A variational autoencoder; what counts is the share of the pictures' variance that it explains."""
    torch.manual_seed(seed)
    pictures = brightness(seed)
    config = VAEConfig()
    if mistake == "divergence_of_the_whole_batch":
        config.kl_reduction = "sum"
    elif mistake == "sigmoid_kept_in_the_decoder":
        config.decoder_sigmoid = True
    elif mistake == "eight_sigmoids_deep":
        config.deep_sigmoid_encoder = True
    model = VAE(config)
    loss = fit(model, pictures, steps)
    fresh = brightness(seed + 1000)
    with torch.no_grad():
        left = functional.mse_loss(model.reconstruct(fresh), fresh) / (fresh - fresh.mean(0)).square().mean()
    return {"loss": loss, "explained": 1 - left.item()}


glyph_vae.mistake(
    "divergence_of_the_whole_batch", "GRD009", "ACT003", layers=("encoder", "moments"),
    summary="The divergence is summed over the batch, the reconstruction averaged: the posterior collapses.",
    change="divergence.sum(1).mean()",
)  # fmt: skip
glyph_vae.mistake(
    "sigmoid_kept_in_the_decoder", "LSS001", layers=("decoder",),
    summary="The decoder ends in a sigmoid, and its loss is the one for logits.",
    change="the decoder gives logits",
)  # fmt: skip
glyph_vae.mistake(
    "eight_sigmoids_deep", "GRD001", layers=("encoder",),
    summary="An encoder of eight layers with sigmoids lets hardly any gradient through.",
    change="two layers with ReLU",
)  # fmt: skip


@healthy(steps=1500, adversarial="one loss term grows from nothing and makes the loss rise on purpose")
def annealed_vae_with_free_bits(steps: int, seed: int) -> dict[str, float]:
    """The divergence is weighted in over the first third, and counts only above half a bit for each dimension."""
    torch.manual_seed(seed)
    pictures = brightness(seed)
    model = VAE(VAEConfig(latent=8))
    optimizer = torch.optim.Adamax(model.parameters(), lr=3e-3)
    for step in range(steps):
        batch = pictures[torch.randint(len(pictures), (64,))]
        logits, mean, log_variance = model(batch)
        fit_loss = functional.binary_cross_entropy_with_logits(logits, batch, reduction="sum") / 64
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean(0)
        loss = fit_loss + min(1.0, 3 * step / steps) * divergence.clamp(min=0.35).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fresh = brightness(seed + 1000)
    with torch.no_grad():
        return {"loss": functional.mse_loss(model.reconstruct(fresh), fresh).item()}


@healthy(
    steps=1500,
    adversarial="some codes of the table are rarely used; a straight-through copy breaks the graph on purpose",
)
def quantised_latents(steps: int, seed: int) -> dict[str, float]:
    """A VQ autoencoder: the nearest of 64 codes, copied straight through, the table moved by running means."""
    torch.manual_seed(seed)
    pictures = brightness(seed)
    encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8))
    decoder = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 64))
    with torch.no_grad():
        codes = encoder(pictures[:64])
    counts = torch.ones(64)
    sums = codes.clone()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = pictures[torch.randint(len(pictures), (64,))]
        encoded = encoder(batch)
        nearest = torch.cdist(encoded.detach(), codes).argmin(1)
        quantised = encoded + (codes[nearest] - encoded).detach()
        commitment = (encoded - codes[nearest]).square().mean()
        loss = functional.mse_loss(decoder(quantised).sigmoid(), batch) + 0.25 * commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            one_hot = functional.one_hot(nearest, 64).float()
            counts.lerp_(one_hot.sum(0), 0.02)
            sums.lerp_(one_hot.T @ encoded, 0.02)
            codes = sums / counts.clamp(min=1e-3)[:, None]
    return {"loss": loss.item()}
