"""Life in a tide pool, generated: small models that draw, remember and imitate what swims there."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program


def finite(value: float) -> float:
    return min(value, 1e6) if math.isfinite(value) else 1e6


def shoals(count: int, g: torch.Generator) -> Tensor:
    """Twelve numbers on each fish: a bent sheet of three dimensions with a little noise."""
    z = torch.randn(count, 3, generator=g)
    base = torch.stack([z[:, 0], z[:, 1], z[:, 2], z[:, 0] * z[:, 1], (2 * z[:, 2]).sin(), z[:, 0].square() - 1], 1)
    return torch.cat([base, base.flip(1) * 0.7], 1) + 0.05 * torch.randn(count, 12, generator=g)


class Anemone(nn.Module):
    """Encoder with a mean and a spread, decoder; the spread may be given as it comes or as a logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.mean, self.spread = nn.Linear(64, 4), nn.Linear(64, 4)
        self.decode = nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 12))
        nn.init.constant_(self.spread.bias, -2.0)

    def forward(self, x: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encode(x)
        mean, log_var = self.mean(h), self.spread(h)
        z = mean + (0.5 * log_var).exp() * torch.randn(mean.shape, generator=g)
        return self.decode(z), mean, log_var


@program(steps=170)
def pool_anemone(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A variational autoencoder with a little of the prior, and codes of neighbours kept apart."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = Anemone()
    if fault == "pool_spread_starts_huge":
        with torch.no_grad():
            net.spread.weight.mul_(60)
    adam = torch.optim.Adam(net.parameters(), lr=4e-3)
    recent: list[float] = []
    for step in range(steps):
        x = shoals(64, g)
        if step >= 80 and step % 5 == 0:
            x[1] = x[0]  # the same fish twice
        drawn, mean, log_var = net(x, g)
        error = (drawn - x).square().mean()
        prior = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum(1).mean()
        gap = (mean[::2] - mean[1::2]).square().sum(1)
        if fault == "pool_root_of_no_distance":
            apart = gap.sqrt()
        else:
            apart = (gap + 1e-6).sqrt()
        loss = error + 2e-3 * prior + 1e-3 * torch.relu(1 - apart).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        recent.append(error.item())
    return {"loss": finite(sum(recent[-10:]) / 10)}


pool_anemone.mistake(
    "pool_root_of_no_distance",
    "NUM001", "NUM003", "NUM002", "NUM004",
    summary="The distance of two codes is a bare root: when the same fish comes twice its gradient is 0 / 0.",
    change="an epsilon under the root",
    layers=("mean", "encode"),
    onset=80,
)  # fmt: skip
pool_anemone.mistake(
    "pool_spread_starts_huge",
    "WGT003", "GRD002", "NUM001", "NUM002", "NUM004", "OPT001",
    summary="The layer of the logarithmic spread starts sixty times too wide: its exponential is astronomical.",
    change="draw that layer small",
    layers=("spread",),
)  # fmt: skip


class Coupling(nn.Module):
    def __init__(self, swap: bool) -> None:
        super().__init__()
        self.swap = swap
        last = nn.Linear(48, 12)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.net = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), last)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, 1)
        if self.swap:
            a, b = b, a
        scale, shift = self.net(a).chunk(2, 1)
        scale = torch.tanh(scale) * 2
        b = b * scale.exp() + shift
        return torch.cat([b, a] if self.swap else [a, b], 1), scale.sum(1)


@program(steps=160, adversarial="a loss that goes below zero has the wrong sign")
def pool_likelihood(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Six coupling layers that begin as the identity; densities above one make the loss negative."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(40 + seed)
    flow = nn.ModuleList([Coupling(i % 2 == 1) for i in range(6)])
    adam = torch.optim.Adam(flow.parameters(), lr=3e-3)
    recent: list[float] = []
    for _ in range(steps):
        x = shoals(128, g)
        volume = torch.zeros(128)
        for layer in flow:
            x, more = layer(x)
            volume = volume + more
        loss = (0.5 * x.square().sum(1) - volume).mean() / 12
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        adam.step()
        recent.append(loss.item())
    return {"loss": finite(sum(recent[-10:]) / 10)}


@program(steps=150, adversarial="a noisy loss that has stopped falling is a plateau")
def pool_noise_remover(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Diffusion: guess the noise at a random time; the output layer starts at zero, an average follows the weights."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(60 + seed)
    last = nn.Linear(96, 12)
    net = nn.Sequential(nn.Linear(14, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), last)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    adam = torch.optim.AdamW(net.parameters(), lr=2e-3)
    recent: list[float] = []
    for _ in range(steps):
        x, noise = shoals(96, g), torch.randn(96, 12, generator=g)
        t = torch.rand(96, 1, generator=g)
        mixed = (t * math.pi / 2).cos() * x + (t * math.pi / 2).sin() * noise
        guess = net(torch.cat([mixed, t, t.square()], 1))
        loss = (guess - noise).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        average.update_parameters(net)
        recent.append(loss.item())
    return {"loss": finite(sum(recent[-10:]) / 10)}


@program(steps=120, adversarial="an update layer of zeros that gets the only gradient means a cut graph")
def pool_cells(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A cellular automaton grows a starfish: eight steps through the same cells, the last layer starts at zero."""
    torch.manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    angle, radius = torch.atan2(rows - 6, columns - 6), torch.hypot(rows - 6, columns - 6)
    starfish = (radius < 3.5 + 1.5 * (5 * angle).cos()).float()
    look, change = nn.Conv2d(6, 32, 3, padding=1), nn.Conv2d(32, 6, 1, bias=False)
    nn.init.zeros_(change.weight)
    cells = nn.ModuleDict({"look": look, "change": change})
    adam = torch.optim.Adam(cells.parameters(), lr=4e-3)
    g = torch.Generator().manual_seed(seed)
    recent: list[float] = []
    for _ in range(steps):
        state = torch.zeros(4, 6, 12, 12)
        state[:, :, 6, 6] = 1.0
        for _ in range(8):
            awake = (torch.rand(4, 1, 12, 12, generator=g) < 0.8).float()
            state = state + awake * change(torch.relu(look(state)))
        loss = (state[:, 0] - starfish).square().mean()
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(cells.parameters(), 1.0)
        adam.step()
        recent.append(loss.item())
    return {"loss": finite(sum(recent[-10:]) / 10)}


@program(steps=150)
def pool_words(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four letters of eight for every fish, chosen by Gumbel's trick while the temperature falls."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(80 + seed)
    speak = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 32))
    hear = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 12))
    net = nn.ModuleDict({"speak": speak, "hear": hear})
    adam = torch.optim.Adam(net.parameters(), lr=4e-3)
    recent: list[float] = []
    for step in range(steps):
        x = shoals(64, g)
        logits = speak(x).view(-1, 4, 8)
        gumbel = -(-torch.rand(logits.shape, generator=g).clamp(1e-6, 1 - 1e-6).log()).log()
        letters = torch.softmax((logits + gumbel) / (1.0 - 0.5 * step / 150), -1)
        loss = (hear(letters.flatten(1)) - x).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        recent.append(loss.item())
    return {"loss": finite(sum(recent[-10:]) / 10)}
