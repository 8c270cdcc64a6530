"""Casts of a simple world: generators of points and small pictures, one script per method."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrizations import spectral_norm

from corpus.case import program


def clover(n: int) -> Tensor:
    """Points on a clover leaf."""
    t = torch.rand(n) * 2 * math.pi
    r = 1.2 + torch.cos(3 * t)
    return torch.stack([r * t.cos(), r * t.sin()], 1) + 0.05 * torch.randn(n, 2)


def blocks(n: int) -> Tensor:
    """Eight by eight pictures of one rectangle, black on white."""
    axis = torch.arange(8)
    low, size = torch.randint(5, (n, 2)), torch.randint(2, 4, (n, 2))
    inside = (axis >= low[:, :, None]) & (axis < (low + size)[:, :, None])
    return (inside[:, 0, :, None] & inside[:, 1, None, :]).float().flatten(1)


@program(steps=200, adversarial="a divergence that is switched off and on again makes the loss jump")
def plaster_prior_in_cycles(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A variational autoencoder whose prior is weighted in cycles from nought to one half."""
    torch.manual_seed(seed)
    encode = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 12))
    decode = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.Adam([*encode.parameters(), *decode.parameters()], lr=3e-3)
    error, kl = torch.zeros(()), torch.zeros(())
    for step in range(steps):
        x = blocks(64)
        mean, log_var = encode(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        error = F.binary_cross_entropy_with_logits(decode(z), x, reduction="none").sum(1).mean()
        kl = 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum(1).mean()
        loss = error + min(0.5, (step % 100) / 100) * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": error.item(), "divergence": kl.item()}


class Coupling(nn.Module):
    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
        nn.init.zeros_(self.net.get_parameter("4.weight"))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = (x[:, 1:], x[:, :1]) if self.flip else (x[:, :1], x[:, 1:])
        shift, scale = self.net(a).chunk(2, 1)
        scale = torch.tanh(scale) * 2
        b = b * scale.exp() + shift
        return (torch.cat([b, a], 1) if self.flip else torch.cat([a, b], 1)), scale[:, 0]


@program(steps=200, adversarial="layers that start at nought pass no gradient on")
def plaster_couplings(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Six affine couplings that begin as the identity; the loss is minus a log-likelihood."""
    torch.manual_seed(seed)
    flow = nn.ModuleList(Coupling(bool(i % 2)) for i in range(6))
    optimizer = torch.optim.Adam(flow.parameters(), lr=4e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 2), eta_min=2e-4)
    loss = torch.zeros(())
    for _ in range(steps):
        z, volume = clover(192), torch.zeros(192)
        for layer in flow:
            z, change = layer(z)
            volume = volume + change
        loss = (0.5 * (z**2).sum(1) + math.log(2 * math.pi) - volume).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 3.0)
        optimizer.step()
        cosine.step()
    return {"loss": loss.item()}


def discrepancy(a: Tensor, b: Tensor) -> float:
    """Energy distance of two samples."""
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


@program(steps=240, bites="distance", adversarial="two losses of a game that do not fall are not learning")
def plaster_hinge_game(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A hinge game with spectral norms, two critic steps for one of the maker, an average of the maker for use."""
    torch.manual_seed(seed)
    maker = nn.Sequential(nn.Linear(4, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 2))
    critic = nn.Sequential(
        spectral_norm(nn.Linear(2, 64)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2),
        spectral_norm(nn.Linear(64, 1)),
    )  # fmt: skip
    average = copy.deepcopy(maker).requires_grad_(False)
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.0, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.0, 0.9))
    made = torch.zeros(())
    for _ in range(steps):
        for _ in range(2):
            fake = maker(torch.randn(96, 4)).detach()
            judged = F.relu(1 - critic(clover(96))).mean() + F.relu(1 + critic(fake)).mean()
            critic_optimizer.zero_grad()
            judged.backward()
            critic_optimizer.step()
        made = -critic(maker(torch.randn(96, 4))).mean()
        maker_optimizer.zero_grad()
        made.backward()
        maker_optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), maker.parameters()):
                slow.lerp_(fast, 0.03)
    with torch.no_grad():
        distance = discrepancy(average(torch.randn(500, 4)), clover(500))
    return {"loss": made.item(), "distance": distance}


class Denoiser(nn.Module):
    """Predicts the noise from the point and the time; the time scales and shifts each layer."""

    def __init__(self, dim: int = 2, width: int = 64) -> None:
        super().__init__()
        self.enter = nn.Linear(dim, width)
        self.time = nn.Linear(16, 2 * width)
        self.middle = nn.Linear(width, width)
        self.leave = nn.Linear(width, dim)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.time.weight)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        waves = t[:, None] * 2.0 ** torch.arange(8)
        scale, shift = self.time(torch.cat([waves.sin(), waves.cos()], 1)).chunk(2, 1)
        h = F.silu(self.enter(x)) * (1 + scale) + shift
        return self.leave(F.silu(self.middle(h)) + h)


@program(steps=200, adversarial="a loss that rests at a half and is noisy is a plateau")
def plaster_removes_noise(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Denoising diffusion with a cosine schedule and an average of the weights; its loss has a high floor."""
    torch.manual_seed(seed)
    model = Denoiser()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    recent: list[float] = []
    for _ in range(steps):
        x, t, noise = clover(192), torch.rand(192), torch.randn(192, 2)
        signal = torch.cos(t * math.pi / 2)[:, None]
        loss = F.mse_loss(model(signal * x + (1 - signal**2).sqrt() * noise, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        recent = [*recent, loss.item()][-20:]
    return {"loss": sum(recent) / len(recent)}


@program(steps=200)
def plaster_straight_paths(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Flow matching: the velocity on the straight line from noise to the clover."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 2))
    optimizer = torch.optim.RAdam(model.parameters(), lr=4e-3)
    recent: list[float] = []
    for _ in range(steps):
        end, start, t = clover(192), torch.randn(192, 2), torch.rand(192, 1)
        loss = F.mse_loss(model(torch.cat([start + t * (end - start), t], 1)), end - start)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent = [*recent, loss.item()][-20:]
    return {"loss": sum(recent) / len(recent)}


class MaskedLinear(nn.Linear):
    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask.shape[1], mask.shape[0])
        self.mask: Tensor
        self.register_buffer("mask", mask)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight * self.mask, self.bias)


@program(steps=180, adversarial="half of the entries of a matrix have no gradient for ever, and so are dead")
def plaster_pixel_by_pixel(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A masked autoregressive network: each pixel from those before it, half of each matrix masked for good."""
    torch.manual_seed(seed)
    order, degree = torch.arange(64), torch.arange(128) % 63
    model = nn.Sequential(
        MaskedLinear((degree[:, None] >= order[None]).float()), nn.ReLU(),
        MaskedLinear((order[:, None] > degree[None]).float()),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x = blocks(64)
        loss = F.binary_cross_entropy_with_logits(model(x), x, reduction="none").sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
