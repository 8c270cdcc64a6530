"""Inkblots of 10×10, symmetric as they should be: autoencoders that compress, clean and invent them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

SIDE = 10


def blots(g: torch.Generator, n: int) -> Tensor:
    """Two blobs and their mirror images, ink between 0 and 1."""
    axis = torch.linspace(-1, 1, SIDE)
    ink = torch.zeros(n, SIDE, SIDE)
    for _ in range(2):
        row = torch.rand(n, 1, 1, generator=g) * 1.6 - 0.8
        col = torch.rand(n, 1, 1, generator=g) * 0.8
        width = 0.1 + 0.15 * torch.rand(n, 1, 1, generator=g)
        for side in (-1, 1):
            ink += torch.exp(-((axis[:, None] - row) ** 2 + (axis - side * col) ** 2) / width)
    return ink.clamp(0, 1).flatten(1)


class InkVAE(nn.Module):
    def __init__(self, latent: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SIDE * SIDE, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU())
        self.mu, self.log_var = nn.Linear(64, latent), nn.Linear(64, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, SIDE * SIDE)
        )


@program(steps=180, bites="reconstruction")
def inkblot_vae(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A variational autoencoder with a small weight on the divergence, Adam, bits of ink by logits."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = InkVAE()
    if fault == "inkblot_decoder_sunk":
        nn.init.constant_(model.decoder.get_parameter("2.bias"), -8.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    beta, loss = 0.02, torch.zeros(())
    for step in range(steps):
        x = blots(g, 64)
        h = model.encoder(x)
        mu, log_var = model.mu(h), model.log_var(h)
        z = mu + torch.randn_like(mu) * (0.5 * log_var).exp()
        if fault == "inkblot_sample_without_gradient":
            z = torch.normal(mu, (0.5 * log_var).exp()).data
        logits = model.decoder(z)
        if fault == "inkblot_sigmoid_twice":
            logits = logits.sigmoid()
        ink = nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
        divergence = -0.5 * (1 + log_var - mu.pow(2) - log_var.exp()).sum(1).mean()
        if fault == "inkblot_divergence_rewarded" and step >= 50:
            divergence = -4 * divergence  # the terms were re-ordered, the sign was not
        loss = ink + beta * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        x = blots(g, 300)
        logits = model.decoder(model.mu(model.encoder(x)))
        error = nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
    return {
        "loss": loss.item() if loss.isfinite() else 1e9,
        "reconstruction": error.item() if error.isfinite() else 1e9,
    }


inkblot_vae.mistake(
    "inkblot_decoder_sunk",
    "ACT001", "GRD004", "WGT003",
    summary="The decoder's second layer starts with biases of minus eight: no unit of it ever speaks.",
    change="biases of zero",
    layers=("decoder.2", "decoder.3"),
)  # fmt: skip
inkblot_vae.mistake(
    "inkblot_sample_without_gradient",
    "ACT003", "GRD003", "UPD003", "GRD009",
    summary="The sample is drawn by torch.normal(...).data: only the divergence reaches the encoder.",
    change="the reparametrised sample",
    layers=("encoder", "mu", "log_var"),
)  # fmt: skip
inkblot_vae.mistake(
    "inkblot_sigmoid_twice",
    "LSS001",
    summary="The decoder's output goes through a sigmoid before the loss that takes logits.",
    change="give it the logits",
)
inkblot_vae.mistake(
    "inkblot_divergence_rewarded",
    "LSS003", "OPT001", "GRD009", "GRD002",
    summary="From step 50 on the divergence is subtracted: the farther from the prior, the better.",
    change="add the divergence",
    onset=50,
)  # fmt: skip


def standardise(h: Tensor, eps: float) -> Tensor:
    return (h - h.mean(0)) / (h.var(0, unbiased=False) + eps).sqrt()


@program(steps=150, bites="reconstruction")
def inkblot_cleaner(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Removes noise: a hidden layer is rectified, standardised over the batch by hand, then decoded; RMSprop."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 9)
    squeeze, expand = nn.Linear(SIDE * SIDE, 80), nn.Linear(80, SIDE * SIDE)
    model = nn.ModuleDict({"squeeze": squeeze, "expand": expand})
    eps = 0.0 if fault == "inkblot_standardised_without_eps" else 1e-4
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    with torch.no_grad():
        squeeze.bias[3] = -30.0  # one unit never speaks; harmless with eps
    loss = torch.zeros(())
    for _ in range(steps):
        x = blots(g, 64)
        noisy = x + 0.3 * torch.randn(64, SIDE * SIDE, generator=g)
        out = expand(standardise(torch.relu(squeeze(noisy)), eps))
        loss = (out - x).pow(2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        x = blots(g, 300)
        noisy = x + 0.3 * torch.randn(300, SIDE * SIDE, generator=g)
        error = (expand(standardise(torch.relu(squeeze(noisy)), eps)) - x).pow(2).sum(1).mean()
    return {
        "loss": loss.item() if loss.isfinite() else 1e9,
        "reconstruction": error.item() if error.isfinite() else 1e9,
    }


inkblot_cleaner.mistake(
    "inkblot_standardised_without_eps",
    "NUM004", "NUM002", "NUM001", "NUM003",
    summary="One hidden unit is constant, and the layer is divided by its spread without eps.",
    change="add eps to the variance",
)  # fmt: skip


@program(steps=150, adversarial="entries of a table are used rarely and have no gradient: dead rows")
def inkblot_codebook(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two codes out of a book of forty, passed straight through; the book follows by a moving average of its users."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.ELU(), nn.Linear(64, 12))
    decoder = nn.Sequential(nn.Linear(12, 64), nn.ELU(), nn.Linear(64, SIDE * SIDE))
    book = torch.randn(40, 6) * 0.3
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x = blots(g, 64)
        parts = encoder(x).view(128, 6)
        code = torch.cdist(parts.detach(), book).argmin(1)
        used = nn.functional.one_hot(code, 40).float()
        count = used.sum(0)[:, None]
        book = torch.where(count > 0, 0.8 * book + 0.2 * (used.T @ parts.detach()) / count.clamp(min=1), book)
        chosen = book[code]
        out = decoder((parts + (chosen - parts).detach()).view(64, 12))
        loss = (out - x).pow(2).sum(1).mean() + 0.25 * (parts - chosen).pow(2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=160, adversarial="the loss rises for the first half while its weight grows: diverging")
def inkblot_annealed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The divergence counts from nothing to a half over ninety steps, with free bits: the loss rises on purpose."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = InkVAE()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    ink = torch.zeros(())
    for step in range(steps):
        x = blots(g, 64)
        h = model.encoder(x)
        mu, log_var = model.mu(h), model.log_var(h).clamp(-8, 4)
        logits = model.decoder(mu + torch.randn_like(mu) * (0.5 * log_var).exp())
        ink = nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
        each = -0.5 * (1 + log_var - mu.pow(2) - log_var.exp()).mean(0)
        loss = ink + min(0.5, step / 180) * each.clamp(min=0.2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": ink.item()}


@program(steps=140)
def inkblot_denoising_steps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A diffusion model of twenty noise levels that predicts the noise; an average of the weights is kept."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    levels = torch.linspace(0.98, 0.05, 20)
    net = nn.Sequential(
        nn.Linear(SIDE * SIDE + 20, 160), nn.SiLU(), nn.Linear(160, 160), nn.SiLU(), nn.Linear(160, 100)
    )
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x = blots(g, 96) * 2 - 1
        level = torch.randint(0, 20, (96,), generator=g)
        keep = levels[level][:, None]
        noise = torch.randn(96, SIDE * SIDE, generator=g)
        mixed = keep.sqrt() * x + (1 - keep).sqrt() * noise
        loss = (net(torch.cat([mixed, nn.functional.one_hot(level, 20)], 1)) - noise).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(net)
    return {"loss": loss.item()}
