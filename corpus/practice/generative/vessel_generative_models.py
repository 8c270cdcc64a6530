"""Outlines of porcelain vessels: codes, densities and cleaned-up scans of curves with twenty-four points."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

POINTS, CODE = 24, 4


def vessels(seed: int, count: int) -> Tensor:
    """Height, belly, neck and foot decide the outline."""
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 1, POINTS)
    belly, neck, foot, tilt = (torch.randn(count, 1, generator=g) for _ in range(4))
    outline = (1 + 0.5 * belly) * torch.sin(3.14 * t) + neck * torch.exp(-8 * (t - 0.85) ** 2)
    return outline + foot * torch.exp(-20 * t**2) + tilt * (t - 0.5) + 0.05 * torch.randn(count, POINTS, generator=g)


class VesselVAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(POINTS, 48), nn.SiLU(), nn.Linear(48, 32), nn.SiLU())
        self.mean = nn.Linear(32, CODE)
        self.log_variance = nn.Linear(32, CODE)
        self.decode = nn.Sequential(nn.Linear(CODE, 48), nn.SiLU(), nn.Linear(48, POINTS))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encode(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decode(z), mean, log_variance


def fit(net: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@program(steps=180, bites="missed")
def porcelain(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A variational autoencoder with a small weight on the prior; `missed` is the share of variance not restored."""
    torch.manual_seed(seed)
    data = vessels(seed, 1024)
    net = VesselVAE()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    g = torch.Generator().manual_seed(seed)
    first, loss = 0.0, torch.tensor(0.0)
    for step in range(steps):
        x = data[torch.randint(1024, (64,), generator=g)]
        y, mean, log_variance = net(x)
        error = fn.mse_loss(y, x)
        prior = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
        beta = 0.01
        if fault == "vessel_prior_of_ten":
            beta = 10.0
        elif fault == "vessel_prior_summed_over_the_batch":
            beta = 0.01 * 64 * CODE
        elif fault == "vessel_prior_climbs_past_its_end":
            beta = 0.01 if step < 90 else 0.2 * (step - 89)
        loss = error + beta * prior
        value = fit(net, optimizer, loss)
        first = value if step == 0 else first
    x = vessels(seed + 60, 256)
    with torch.no_grad():
        y, mean, _ = net(x)
    missed = (fn.mse_loss(y, x) / (x - x.mean(0)).square().mean()).item()
    return {"loss": loss.item(), "first": first, "missed": missed, "code": mean.std(0).mean().item()}


porcelain.mistake(
    "vessel_prior_of_ten",
    "ACT003", "GRD009",
    summary="The prior weighs ten: the code is always the same, and every vessel comes back as the average one.",
    change="a weight of 0.01",
)  # fmt: skip
porcelain.mistake(
    "vessel_prior_summed_over_the_batch",
    "ACT003", "GRD009",
    summary="The prior is summed over batch and code while the error is averaged, and smothers the code.",
    change="average both",
)  # fmt: skip
porcelain.mistake(
    "vessel_prior_climbs_past_its_end",
    "ACT003", "GRD009",
    summary="The prior's weight climbs from step 90 without an upper end until the code collapses.",
    change="stop the climb at 0.01",
    onset=90,
)  # fmt: skip


@program(steps=160, bites="loss", adversarial="a loss that stays near one and falls little")
def vessel_from_noise(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A small diffusion model that predicts the noise at a random level, rectified Adam and an average of weights."""
    torch.manual_seed(seed)
    data = vessels(seed, 1024)
    net = nn.Sequential(nn.Linear(POINTS + 2, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, POINTS))
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.95))
    optimizer = torch.optim.RAdam(net.parameters(), lr=4e-3)
    g = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        x = data[torch.randint(1024, (96,), generator=g)]
        level = torch.rand(96, 1, generator=g)
        noise = torch.randn(x.shape, generator=g)
        noisy = torch.cos(1.57 * level) * x + torch.sin(1.57 * level) * noise
        guess = net(torch.cat([noisy, torch.cos(1.57 * level), torch.sin(1.57 * level)], 1))
        history.append(fit(net, optimizer, fn.mse_loss(guess, noise)))
        average.update_parameters(net)
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}


class Coupling(nn.Module):
    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(POINTS // 2, 48), nn.Tanh(), nn.Linear(48, POINTS))
        last = self.net[2]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = (x[:, ::2], x[:, 1::2]) if self.flip else (x[:, 1::2], x[:, ::2])
        log_scale, shift = self.net(a).chunk(2, 1)
        log_scale = torch.tanh(log_scale)
        b = b * log_scale.exp() + shift
        pair = (a, b) if self.flip else (b, a)
        return torch.stack(pair, 2).flatten(1), log_scale.sum(1)


@program(steps=160, bites="loss", adversarial="layers of zeros at the start, a loss that falls far below zero")
def vessel_likelihood(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four couplings that start as the identity; the negative log-likelihood passes zero on its way down."""
    torch.manual_seed(seed)
    data = vessels(seed, 1024)
    flow = nn.ModuleList(Coupling(flip=i % 2 == 0) for i in range(4))
    optimizer = torch.optim.Adam(flow.parameters(), lr=4e-3)
    g = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        z, volume = data[torch.randint(1024, (96,), generator=g)], torch.zeros(96)
        for coupling in flow:
            z, more = coupling(z)
            volume = volume + more
        loss = (0.5 * z.square().sum(1) - volume).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), 20.0)
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}


@program(steps=160, bites="loss", adversarial="units that are silent for nineteen inputs in twenty")
def vessel_few_at_a_time(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A wide code of which only the eight strongest of a hundred and sixty units are kept for each vessel."""
    torch.manual_seed(seed)
    data = vessels(seed, 1024)
    encode, decode = nn.Linear(POINTS, 160), nn.Linear(160, POINTS)
    net = nn.Sequential(encode, decode)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    g = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        x = data[torch.randint(1024, (96,), generator=g)]
        h = torch.relu(encode(x))
        strongest = h.topk(8, dim=1)
        code = torch.zeros_like(h).scatter(1, strongest.indices, strongest.values)
        history.append(fit(net, optimizer, fn.mse_loss(decode(code), x)))
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}
