"""Densities of points in the plane: a normalising flow, an energy, and a denoising diffusion."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program
from undertow.demos.case import Fault, sick


def moons(count: int) -> Tensor:
    """Two half circles, standardised."""
    angle = math.pi * torch.rand(count)
    upper = torch.rand(count) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    return (torch.stack([x, y], 1) + 0.07 * torch.randn(count, 2) - torch.tensor([0.5, 0.25])) / torch.tensor(
        [0.87, 0.5]
    )


class Coupling(nn.Module):
    """One coordinate is scaled and moved by a function of the other."""

    def __init__(self, keeps: int) -> None:
        super().__init__()
        self.keeps = keeps
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        kept, changed = points[:, self.keeps, None], points[:, 1 - self.keeps, None]
        log_scale, shift = self.net(kept).chunk(2, 1)
        log_scale = 2 * torch.tanh(log_scale)
        changed = changed * log_scale.exp() + shift
        pair = (kept, changed) if self.keeps == 0 else (changed, kept)
        return torch.cat(pair, 1), log_scale.squeeze(1)


class Flow(nn.Module):
    def __init__(self, couplings: int) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(number % 2) for number in range(couplings))

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        volume = torch.zeros(len(points))
        for coupling in self.couplings:
            points, change = coupling(points)
            volume = volume + change
        return points, volume

    def surprise(self, points: Tensor) -> Tensor:
        latent, volume = self(points)
        return (0.5 * latent.square().sum(1) + math.log(2 * math.pi) - volume).mean()


@sick(
    "LSS003", steps=600, bites="surprise", architecture="flow",
    change="the log-determinant is subtracted",
)  # fmt: skip
def log_determinant_added(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The change of volume enters the likelihood with the wrong sign: the flow shrinks everything to a point."""
    torch.manual_seed(seed)
    flow = Flow(6)
    optimizer = torch.optim.Adam(flow.parameters(), lr=2e-3)
    for _ in range(steps):
        points = moons(128)
        latent, volume = flow(points)
        prior = 0.5 * latent.square().sum(1) + math.log(2 * math.pi)
        loss = (prior - volume).mean()
        if fault:
            loss = (prior + volume).mean()  # at fault: log_determinant_added
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return {"surprise": flow.surprise(moons(2000)).item()}


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, points: Tensor) -> Tensor:
        return self.net(points).squeeze(1)


def langevin(energy: Energy, start: Tensor, moves: int, by_backward: bool) -> Tensor:
    """Walk downhill with noise."""
    points = start.clone()
    for _ in range(moves):
        points = points.detach().requires_grad_()
        if by_backward:
            energy(points).sum().backward()  # at fault: sampler_leaves_gradients
            assert points.grad is not None
            slope = points.grad
        else:
            slope = torch.autograd.grad(energy(points).sum(), points)[0]
        points = (points - 0.05 * slope + 0.1 * torch.randn_like(points)).detach().clamp(-4, 4)
    return points


@sick(
    "GRD007", steps=500, bites="gap", architecture="energy",
    change="torch.autograd.grad in the sampler",
)  # fmt: skip
def sampler_leaves_gradients(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The sampler calls backward for the points' sake, and what it leaves on the weights is stepped along."""
    torch.manual_seed(seed)
    energy, kept = Energy(), torch.randn(64, 2)
    optimizer = torch.optim.Adam(energy.parameters(), lr=1e-3, betas=(0.5, 0.999))
    for _ in range(steps):
        optimizer.zero_grad()
        real = moons(64)
        kept = langevin(energy, torch.where(torch.rand(64, 1) < 0.05, torch.randn(64, 2), kept), 10, bool(fault))
        on_real, on_fake = energy(real), energy(kept)
        loss = on_real.mean() - on_fake.mean() + 0.1 * (on_real.square() + on_fake.square()).mean()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        gap = energy(torch.rand(2000, 2) * 6 - 3).mean() - energy(moons(2000)).mean()
    return {"gap": gap.clamp(-20, 20).item()}


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))

    def forward(self, points: Tensor, moment: Tensor) -> Tensor:
        return self.net(torch.cat([points, moment[:, None]], 1))


def kept_share(moment: Tensor) -> Tensor:
    """How much of the picture is left at a moment between 0 and 1."""
    return torch.cos(0.5 * math.pi * (0.02 + 0.96 * moment)).square()


@program(steps=2000, bites="error")
def point_diffusion(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A denoiser learns which noise was added to points of two moons."""
    torch.manual_seed(seed)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def errors(count: int) -> Tensor:
        clean, tick = moons(count), torch.randint(1000, (count,))
        share = kept_share(tick / 1000)[:, None]
        noise = torch.randn_like(clean)
        noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
        if mistake == "timestep_uncounted":
            moment = tick.float() * 10  # at fault: timestep_uncounted
        else:
            moment = tick / 1000
        predicted = model(noisy, moment)
        if mistake == "noise_drawn_again":
            return functional.mse_loss(predicted, torch.randn_like(clean))  # at fault: noise_drawn_again
        return functional.mse_loss(predicted, noise)

    running = 0.0
    for step in range(steps):
        loss = errors(128)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = loss.item() if step == 0 else 0.98 * running + 0.02 * loss.item()
    return {"error": running}


point_diffusion.mistake(
    "noise_drawn_again", "DAT004",
    summary="The target is a fresh draw of noise, not the one that was added.",
    change="the noise that was added",
)  # fmt: skip
point_diffusion.mistake(
    "timestep_uncounted", "DAT001", layers=("net.0", "0"),
    summary="The moment is given in microseconds, up to ten thousand, beside points near one.",
    change="moments between 0 and 1",
)  # fmt: skip


@healthy(steps=800, adversarial="a loss that is negative, and a last layer that begins at zero in every coupling")
def flow_from_the_identity(steps: int, seed: int) -> dict[str, float]:
    """A flow that begins as the identity, on narrow points whose likelihood is far above one."""
    torch.manual_seed(seed)
    flow = Flow(4)
    for coupling in flow.couplings:
        nn.init.zeros_(coupling.net[-1].weight)
        nn.init.zeros_(coupling.net[-1].bias)
    optimizer = torch.optim.Adam(flow.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = flow.surprise(0.1 * moons(128))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=1500, adversarial="a loss that stays near its start for good: most of the noise cannot be known")
def score_matching_of_a_blob(steps: int, seed: int) -> dict[str, float]:
    """Sliced score matching with double backward; the loss is negative and noisy."""
    torch.manual_seed(seed)
    score = nn.Sequential(nn.Linear(2, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(score.parameters(), lr=1e-3)
    running = 0.0
    for _ in range(steps):
        points = (moons(128) + 0.1 * torch.randn(128, 2)).requires_grad_()
        direction = torch.randn(128, 2).sign()
        along = (score(points) * direction).sum(1)
        slope = torch.autograd.grad(along.sum(), points, create_graph=True)[0]
        loss = ((slope * direction).sum(1) + 0.5 * along.square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = 0.98 * running + 0.02 * loss.item()
    return {"loss": running}
