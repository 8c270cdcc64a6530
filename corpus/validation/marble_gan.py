"""A forger of marbles and the collector who looks at them: adversarial training on twelve light cells."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as fn

from corpus.case import program

LOOK = torch.linspace(-3, 3, 12)  # a marble is seen by twelve light cells


def marbles_in_a_ring(n):
    """Real marbles lie in five heaps on a circle; what is seen is their shadow in every direction."""
    heap = torch.randint(5, (n,)) * (2 * math.pi / 5)
    place = torch.stack([heap.cos(), heap.sin()], 1) + 0.15 * torch.randn(n, 2)
    return place[:, :1] * LOOK.cos() + place[:, 1:] * LOOK.sin() + 0.05 * torch.randn(n, 12)


class Forger(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 12))

    def forward(self, noise):
        return self.net(noise)


class Collector(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(12, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1)
        )

    def forward(self, x):
        return self.net(x)


def how_far(forger):
    """Energy distance of a forged heap to a real one."""
    with torch.no_grad():
        fake, real = forger(torch.randn(400, 8)), marbles_in_a_ring(400)
        d = 2 * torch.cdist(fake, real).mean() - torch.cdist(fake, fake).mean() - torch.cdist(real, real).mean()
    return min(d.item(), 100.0)


@program(steps=240, bites="distance")
def marbles(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A forger and a collector with equal rates, non-saturating losses, a gradient penalty, two Adams."""
    torch.manual_seed(seed)
    forger, collector = Forger(), Collector()
    rate = 1e-3
    collector_rate = 200 * rate if fault == "marbles_collector_hurries" else rate
    forger_rate = rate
    if fault == "marbles_forger_asleep":
        forger_rate = rate / 500
    opt_f = torch.optim.Adam(forger.parameters(), lr=forger_rate, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(collector.parameters(), lr=collector_rate, betas=(0.0, 0.9))
    start = how_far(forger)
    loss_c = loss_f = torch.tensor(0.0)
    for step in range(steps):
        if fault == "marbles_collector_hurries_later" and step == 80:
            opt_c.param_groups[0]["lr"] = 200 * rate
        real = marbles_in_a_ring(64).requires_grad_()
        fake = forger(torch.randn(64, 8))
        opt_c.zero_grad()
        says = collector(real)
        (slope,) = torch.autograd.grad(says.sum(), real, create_graph=True)
        loss_c = fn.softplus(-says).mean() + fn.softplus(collector(fake.detach())).mean()
        loss_c = loss_c + 0.5 * slope.square().sum(1).mean()
        loss_c.backward()
        opt_c.step()
        opt_f.zero_grad()
        loss_f = fn.softplus(-collector(fake)).mean()
        loss_f.backward()
        opt_f.step()
    distance = how_far(forger)
    return {"loss": min(loss_f.item(), 1e6), "first": start, "distance": distance, "collector": loss_c.item()}


marbles.mistake(
    "marbles_collector_hurries",
    "OPT007", "UPD001", "GRD009", "GRD001", "OPT001",
    summary="The collector's rate is two hundred times the forger's: 0.2 for Adam.",
    change="equal rates",
)  # fmt: skip
marbles.mistake(
    "marbles_collector_hurries_later",
    "OPT007", "UPD001", "GRD009", "GRD001", "OPT001",
    summary="From step 80 on the collector's rate is two hundred times the forger's, by a schedule for one of the two.",
    change="equal rates",
    onset=80,
)  # fmt: skip
marbles.mistake(
    "marbles_forger_asleep",
    "OPT007", "UPD002", "GRD009",
    summary="The forger's rate is five hundred times smaller than the collector's.",
    change="equal rates",
)  # fmt: skip


@program(steps=220, adversarial="a loss below zero that hovers: wrong sign, plateau, oscillation")
def marbles_hinge_and_spectral(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Hinge losses, spectral norms in the collector, two collector steps for one of the forger."""
    torch.manual_seed(seed)
    forger = Forger()
    collector = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(12, 48)),
        nn.LeakyReLU(0.2),
        nn.utils.parametrizations.spectral_norm(nn.Linear(48, 48)),
        nn.LeakyReLU(0.2),
        nn.Linear(48, 1),
    )
    opt_f = torch.optim.Adam(forger.parameters(), lr=1e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(collector.parameters(), lr=4e-3, betas=(0.0, 0.9))
    start = how_far(forger)
    loss_f = torch.tensor(0.0)
    for _ in range(steps // 2):
        for _ in range(2):
            fake = forger(torch.randn(64, 8)).detach()
            opt_c.zero_grad()
            loss = fn.relu(1 - collector(marbles_in_a_ring(64))).mean() + fn.relu(1 + collector(fake)).mean()
            loss.backward()
            opt_c.step()
        opt_f.zero_grad()
        loss_f = -collector(forger(torch.randn(64, 8))).mean()
        loss_f.backward()
        opt_f.step()
    return {"loss": loss_f.item(), "first": start, "distance": how_far(forger)}


@program(steps=200, adversarial="the loss is noisy for ever and hardly falls: plateau, gradient noise")
def marbles_flow_matching(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A velocity that carries noise to marbles: the loss has a high floor, since the target is random."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(13, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 12))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    first, smooth = 0.0, 0.0
    for step in range(steps):
        x1 = marbles_in_a_ring(128)
        x0 = torch.randn_like(x1)
        t = torch.rand(len(x1), 1)
        loss = fn.mse_loss(model(torch.cat([(1 - t) * x0 + t * x1, t], 1)), x1 - x0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.95 * smooth + 0.05 * loss.item()
    return {"loss": smooth, "first": first}
