"""Swarms of points and the fields that shape them: score matching, energies, flows, and weights that are averaged."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program


def swarm(count: int, generator: torch.Generator) -> Tensor:
    """Two crescents."""
    angle = torch.rand(count, generator=generator) * math.pi
    side = torch.randint(0, 2, (count,), generator=generator).float() * 2 - 1
    x = torch.stack([angle.cos() + 0.5 * side, side * (angle.sin() - 0.3)], 1)
    return x + 0.05 * torch.randn(count, 2, generator=generator)


class Score(nn.Module):
    """Which noise is in a noisy point?"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.time = nn.Linear(1, width)
        self.place = nn.Linear(2, width)
        self.middle = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.out = nn.Linear(width, 2)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        return self.out(self.middle(self.place(x) + self.time(noise.log())))


@torch.no_grad()
def left_over(net: nn.Module, scaled: bool = False) -> float:
    """Share of the noise that is not recognised."""
    generator = torch.Generator().manual_seed(888)
    x, eps = swarm(1000, generator), torch.randn(1000, 2, generator=generator)
    noise = torch.full((1000, 1), 0.4)
    guess = net(x + noise * eps, noise)
    error = functional.mse_loss(-guess * noise if scaled else guess, eps).item()
    return min(error, 3.0) if math.isfinite(error) else 3.0


@program(steps=500, bites="left")
def swarm_denoising(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Noise of many strengths is to be recognised; what counts in the end is an average of the weights."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    net = Score(64)
    kept = copy.deepcopy(net).requires_grad_(False)
    rate = 0.15 if mistake == "swarm_denoising_hasty" else 3e-3
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    scaled = mistake == "swarm_denoising_true_score"
    for step in range(steps):
        x, eps = swarm(128, generator), torch.randn(128, 2, generator=generator)
        noise = (torch.rand(128, 1, generator=generator) * 5 - 5).exp()
        guess = net(x + noise * eps, noise)
        loss = functional.mse_loss(guess, -eps / noise if scaled else eps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pace = max(0.02, 1 / (step + 1))
        with torch.no_grad():
            for old, new in zip(kept.parameters(), net.parameters()):
                old.lerp_(new, pace)
    return {"left": left_over(net, scaled), "kept": left_over(kept, scaled)}


swarm_denoising.mistake(
    "swarm_denoising_hasty",
    "OPT007",
    "UPD001",
    summary="A learning rate fifty times too high; the loss falls all the same.",
    change="0.003",
)
swarm_denoising.mistake(
    "swarm_denoising_true_score",
    "DAT003",
    "GRD002",
    "OPT005",
    summary="The target is the noise over its own strength, without a weight: up to hundreds where the noise is weak.",
    change="the target is the noise itself",
)


@healthy(steps=300, adversarial="the loss hovers about zero on either side, as data and samples balance")
def swarm_energy(steps: int, seed: int) -> dict[str, float]:
    """An energy, low at the data and high at what a few steps of Langevin dynamics find."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    energy = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(energy.parameters(), lr=1e-3, betas=(0.5, 0.99))
    pool = torch.randn(512, 2, generator=generator) * 2
    for _ in range(steps):
        rows = torch.randperm(512, generator=generator)[:128]
        made = pool[rows]
        for _ in range(8):
            made.requires_grad_()
            (slope,) = torch.autograd.grad(energy(made).sum(), made)
            made = (made - 0.1 * slope + 0.1 * torch.randn(128, 2, generator=generator)).detach().clamp(-3, 3)
        pool[rows] = made
        pool[rows[:8]] = torch.randn(8, 2, generator=generator) * 2
        real, false = energy(swarm(128, generator)), energy(made)
        loss = real.mean() - false.mean() + 0.05 * (real.square().mean() + false.square().mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        real, elsewhere = energy(swarm(500, generator)), energy(torch.rand(500, 2, generator=generator) * 6 - 3)
        return {"loss": 1 - (real < elsewhere).float().mean().item()}


class Coupling(nn.Module):
    def __init__(self, which: int) -> None:
        super().__init__()
        self.which = which
        last = nn.Linear(32, 2)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), last)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = x[:, self.which : self.which + 1], x[:, 1 - self.which : 2 - self.which]
        stretch, shift = self.net(kept).chunk(2, 1)
        stretch = torch.tanh(stretch)
        moved = moved * stretch.exp() + shift
        parts = (kept, moved) if self.which == 0 else (moved, kept)
        return torch.cat(parts, 1), stretch.squeeze(1)


@healthy(steps=350, adversarial="the loss passes through zero and ends below it; last layers start at zero")
def swarm_flow(steps: int, seed: int) -> dict[str, float]:
    """A normalising flow of couplings, trained by likelihood on points in small units."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    flow = nn.ModuleList(Coupling(which % 2) for which in range(6))
    optimizer = torch.optim.Adam(flow.parameters(), lr=4e-3)
    losses: list[float] = []
    for _ in range(steps):
        x = 0.5 * swarm(128, generator)
        volume = torch.zeros(128)
        for coupling in flow:
            x, stretch = coupling(x)
            volume = volume + stretch
        loss = (x.square().sum(1) / 2 + math.log(2 * math.pi) - volume).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    late = losses[-20:]
    return {"loss": sum(late) / len(late)}


@healthy(steps=300, adversarial="a linear model whose loss is its own output squared; it tends to nothing")
def swarm_still_direction(steps: int, seed: int) -> dict[str, float]:
    """The direction in which the data hardly move: a row of length one whose output is to vanish."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    mixing = torch.linalg.qr(torch.randn(6, 6, generator=generator)).Q
    spread = torch.tensor([2.0, 1.5, 1.2, 1.0, 0.8, 0.01])
    row = nn.Linear(6, 1, bias=False)
    optimizer = torch.optim.SGD(row.parameters(), lr=0.05)
    for _ in range(steps):
        x = (torch.randn(64, 6, generator=generator) * spread) @ mixing.T
        loss = row(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            row.weight.div_(row.weight.norm())
    return {"loss": 1 - (row.weight.detach() @ mixing[:, 5]).abs().item()}
