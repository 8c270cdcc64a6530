"""Invented fossils: an artist draws measurements of shells, an expert tells them from the real ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

MEASURES = 12


def real_shells(count: int, g: torch.Generator) -> Tensor:
    """Twelve measures along the shell that follow from its size and its twist."""
    place = torch.linspace(0, 1, MEASURES)
    size, twist = 1.0 + 0.4 * torch.randn(count, 1, generator=g), 0.5 * torch.randn(count, 1, generator=g)
    return size * torch.sin(3.0 * place + twist) + 0.03 * torch.randn(count, MEASURES, generator=g)


def make_artist() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, MEASURES)
    )


def make_expert() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(MEASURES, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1)
    )


def gap(artist: nn.Module, seed: int) -> float:
    """How far mean and spread of the drawings are from those of real shells."""
    g = torch.Generator().manual_seed(seed + 5)
    real = real_shells(2000, g)
    with torch.no_grad():
        drawn = artist(torch.randn(2000, 8, generator=g))
    return ((real.mean(0) - drawn.mean(0)).norm() + (real.T.cov() - drawn.T.cov()).norm()).item()


@program(steps=500, bites="gap")
def fossils(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Expert and artist take turns, Adam without momentum on both sides; two steps make a round."""
    torch.manual_seed(seed)
    artist, expert = make_artist(), make_expert()
    expert_rate = 0.2 if fault == "fossil_expert_a_hundred_times_faster" else 2e-3
    artist_opt = torch.optim.Adam(artist.parameters(), lr=2e-3, betas=(0.0, 0.99))
    expert_opt = torch.optim.Adam(expert.parameters(), lr=expert_rate, betas=(0.0, 0.99))
    judge = nn.BCEWithLogitsLoss()
    g = torch.Generator().manual_seed(seed)
    first, artist_loss = 0.0, torch.tensor(0.0)
    for turn in range(steps // 2):
        if fault == "fossil_expert_hurries_later" and turn == 40:
            for group in expert_opt.param_groups:
                group["lr"] = 0.2
        real, drawn = real_shells(64, g), artist(torch.randn(64, 8, generator=g))
        expert_opt.zero_grad()
        expert_loss = judge(expert(real), torch.full((64, 1), 0.9)) + judge(expert(drawn.detach()), torch.zeros(64, 1))
        expert_loss.backward()
        expert_opt.step()
        artist_opt.zero_grad()
        artist_loss = -judge(expert(artist(torch.randn(64, 8, generator=g))), torch.zeros(64, 1))  # the minimax form
        artist_loss.backward()
        artist_opt.step()
        first = artist_loss.item() if turn == 0 else first
    return {"loss": artist_loss.item(), "first": first, "gap": min(gap(artist, seed), 1e4)}


fossils.mistake(
    "fossil_expert_a_hundred_times_faster",
    "OPT007", "GRD009", "UPD001", "GRD001",
    summary="The expert learns at a hundred times the artist's rate and leaves the artist nothing to learn from.",
    change="the same rate for both",
)  # fmt: skip
fossils.mistake(
    "fossil_expert_hurries_later",
    "OPT007", "GRD009", "UPD001", "GRD001",
    summary="In round 40 the expert's rate rises to a hundred times the artist's.",
    change="leave the rate",
    onset=80,
)  # fmt: skip


@program(steps=300, bites="gap", adversarial="a loss of both signs that goes nowhere, and gradients of gradients")
def fossil_distance(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A critic with a penalty on its slope (gradients of gradients), four turns for each of the artist's."""
    torch.manual_seed(seed)
    artist, critic = make_artist(), make_expert()
    artist_opt = torch.optim.Adam(artist.parameters(), lr=2e-3, betas=(0.5, 0.9))
    critic_opt = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    g = torch.Generator().manual_seed(seed)
    value, first = 0.0, 0.0
    for turn in range(steps):
        if turn % 5 != 4:
            real, drawn = real_shells(64, g), artist(torch.randn(64, 8, generator=g)).detach()
            blend = torch.rand(64, 1, generator=g)
            between = (blend * real + (1 - blend) * drawn).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            loss = critic(drawn).mean() - critic(real).mean() + 2.0 * (slope.norm(dim=1) - 1).square().mean()
            critic_opt.zero_grad()
            loss.backward()
            critic_opt.step()
            value = loss.item()
            first = value if turn == 0 else first
        else:
            artist_opt.zero_grad()
            (-critic(artist(torch.randn(64, 8, generator=g))).mean()).backward()
            artist_opt.step()
    return {"loss": value, "first": first, "gap": gap(artist, seed)}


@program(steps=200, bites="gap")
def fossil_moments(steps: int, seed: int, fault: str) -> dict[str, float]:
    """No expert at all: the drawings are compared with the real ones by a kernel over pairs, RMSprop."""
    torch.manual_seed(seed)
    artist = make_artist()
    optimizer = torch.optim.RMSprop(artist.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(seed)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        square = (a[:, None] - b[None]).square().sum(-1)
        return sum((torch.exp(-square / width) for width in (1.0, 4.0, 16.0)), torch.tensor(0.0)).mean()

    history: list[float] = []
    for _ in range(steps):
        real, drawn = real_shells(64, g), artist(torch.randn(64, 8, generator=g))
        loss = kernel(drawn, drawn) + kernel(real, real) - 2 * kernel(drawn, real)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0], "gap": gap(artist, seed)}


@program(steps=240, bites="gap", adversarial="two optimizers of which one rests for long")
def fossil_expert_waits(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The expert takes a turn only when it is wrong often enough; a hinge decides, and the artist never rests."""
    torch.manual_seed(seed)
    artist, expert = make_artist(), make_expert()
    artist_opt = torch.optim.Adam(artist.parameters(), lr=1e-3, betas=(0.5, 0.99))
    expert_opt = torch.optim.Adam(expert.parameters(), lr=2e-3, betas=(0.5, 0.99))
    g = torch.Generator().manual_seed(seed)
    value, first = 0.0, 0.0
    for turn in range(steps):
        real, drawn = real_shells(64, g), artist(torch.randn(64, 8, generator=g))
        hinge = torch.relu(1 - expert(real)).mean() + torch.relu(1 + expert(drawn.detach())).mean()
        if hinge.item() > 1.2:
            expert_opt.zero_grad()
            hinge.backward()
            expert_opt.step()
        artist_opt.zero_grad()
        loss = -expert(drawn).mean()
        loss.backward()
        artist_opt.step()
        value = hinge.item()
        first = value if turn == 0 else first
    return {"loss": value, "first": first, "gap": gap(artist, seed)}
