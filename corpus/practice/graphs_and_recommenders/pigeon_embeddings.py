"""Homing pigeons: which loft does a ring number belong to, who flies with whom, and how far is it home?"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

LOFTS, BIRDS, RACES = 6, 240, 160


class Season:
    """Birds have a loft and hidden talents; the result of a race is their product with the weather."""

    def __init__(self, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        self.g = g
        self.talent = torch.randn(BIRDS, 4, generator=g)
        self.weather = torch.randn(RACES, 4, generator=g)
        self.loft = torch.randint(LOFTS, (BIRDS,), generator=g)
        self.look = torch.randn(LOFTS, 20, generator=g)

    def results(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        bird = torch.randint(BIRDS, (n,), generator=self.g)
        race = torch.randint(RACES, (n,), generator=self.g)
        speed = (self.talent[bird] * self.weather[race]).sum(1) / 2 + 0.1 * torch.randn(n, generator=self.g)
        return bird, race, speed

    def photographs(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Two photographs of birds of one loft, as features."""
        loft = torch.randint(LOFTS, (n,), generator=self.g)
        a, b = (self.look[loft] + 0.8 * torch.randn(n, 20, generator=self.g) for _ in range(2))
        return a, b, loft


class Speed(nn.Module):
    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.bird = nn.Embedding(BIRDS, size)
        self.race = nn.Embedding(RACES, size)
        self.bird_bias = nn.Embedding(BIRDS, 1)
        self.mix = nn.Linear(size, 1)
        for table in (self.bird, self.race):
            nn.init.normal_(table.weight, std=0.3)
        nn.init.zeros_(self.bird_bias.weight)

    def forward(self, bird: Tensor, race: Tensor) -> Tensor:
        return self.mix(self.bird(bird) * self.race(race)) + self.bird_bias(bird)


def spread_out(model: Speed) -> None:
    """A typo in a reset: one vector for all birds, and one for all races."""
    with torch.no_grad():
        model.bird.weight.copy_(torch.full_like(model.bird.weight, 0.3))
        model.race.weight.copy_(torch.full_like(model.race.weight, 0.3))
        model.mix.weight.fill_(0.25)


@program(steps=200, bites="error")
def pigeons(steps: int, seed: int, fault: str) -> dict[str, float]:
    """How fast will this bird be in this race: factors of birds and races, Adam."""
    torch.manual_seed(seed)
    season = Season(seed)
    model = Speed()
    if fault == "pigeons_all_start_alike":
        spread_out(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    loss = torch.zeros(())
    for step in range(steps):
        bird, race, speed = season.results(400)
        guess = model(bird, race)
        if fault == "pigeons_column_minus_row" or (fault == "pigeons_new_metric_at_eighty" and step >= 80):
            miss = guess - speed
        else:
            miss = guess.squeeze(1) - speed
        loss = torch.where(miss.abs() < 1, 0.5 * miss.square(), miss.abs() - 0.5).mean()
        if fault != "pigeons_gradients_kept":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    bird, race, speed = season.results(1000)
    with torch.no_grad():
        error = (model(bird, race).squeeze(1) - speed).square().mean().item()
    return {"loss": loss.item(), "error": error}


pigeons.mistake(
    "pigeons_all_start_alike",
    "WGT002",
    summary="Both tables are reset to one number: all sixteen factors stay the same factor.",
    change="draw the tables at random",
    layers=("bird", "race", "mix"),
)
pigeons.mistake(
    "pigeons_column_minus_row",
    "LSS002",
    summary="A column of guesses minus a row of speeds: the loss compares every bird with every race.",
    change="squeeze the guesses",
)
pigeons.mistake(
    "pigeons_new_metric_at_eighty",
    "LSS002", "OPT001",
    summary="From step 80 another branch of the loss runs, and it forgets to squeeze the guesses.",
    change="squeeze the guesses in both branches",
    onset=80,
)  # fmt: skip
pigeons.mistake(
    "pigeons_gradients_kept",
    "GRD007",
    summary="zero_grad stands in a branch that is never taken: gradients add up over the season.",
    change="call zero_grad in every step",
)


class Eye(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.a = nn.Linear(20, hidden)
        self.b = nn.Linear(hidden, hidden)
        self.c = nn.Linear(hidden, 24)

    def forward(self, x: Tensor) -> Tensor:
        return fn.normalize(self.c(fn.elu(self.b(fn.elu(self.a(x))))), dim=1)


@program(steps=150, bites="recall")
def pigeons_of_a_feather(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Photographs of birds of one loft shall lie near each other: supervised contrast, temperature 0.2."""
    torch.manual_seed(seed)
    season = Season(seed)
    eye = Eye()
    optimizer = torch.optim.AdamW(eye.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        a, b, loft = season.photographs(48)
        za, zb = eye(a), eye(b)
        likeness = za @ zb.T / 0.2
        same = (loft[:, None] == loft[None]).float()
        picked = (fn.log_softmax(likeness, 1) * same).sum(1) / same.sum(1)
        loss = picked.mean() if fault == "pigeons_pushed_apart" else -picked.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    a, b, loft = season.photographs(300)
    with torch.no_grad():
        near = (eye(a) @ eye(b).T).argmax(1)
    return {"loss": loss.item(), "recall": (loft[near] == loft).float().mean().item()}


pigeons_of_a_feather.mistake(
    "pigeons_pushed_apart",
    "LSS003", "OPT001",
    summary="The minus of the contrastive loss was lost: birds of one loft are pushed apart.",
    change="minus the logarithm",
)  # fmt: skip


@program(steps=150, adversarial="gradients that shrink to nothing vanish: every triplet is satisfied in the end")
def pigeons_in_threes(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Triplets with a margin: soon most of them cost nothing."""
    torch.manual_seed(seed)
    season = Season(seed)
    eye = Eye()
    optimizer = torch.optim.Adam(eye.parameters(), lr=2e-3)
    recent: list[float] = []
    for _ in range(steps):
        a, b, loft = season.photographs(64)
        order = torch.randperm(64)
        other = loft[order] != loft
        loss = fn.triplet_margin_loss(eye(a)[other], eye(b)[other], eye(b[order])[other], margin=0.6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent = [*recent[-14:], loss.item()]
    return {"loss": sum(recent) / len(recent)}


@program(steps=200, adversarial="weights that shrink collapse: the penalty on unused factors is meant")
def pigeons_few_factors(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Forty factors where four are enough; a decoupled decay takes the rest away."""
    torch.manual_seed(seed)
    season = Season(seed)
    model = Speed(size=40)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.3)
    loss = torch.zeros(())
    for _ in range(steps):
        bird, race, speed = season.results(400)
        loss = fn.mse_loss(model(bird, race).squeeze(1), speed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=160)
def pigeons_way_home(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The bearing home as an angle on the circle, from sun and wind: one minus the cosine."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 48), nn.Softplus(), nn.Linear(48, 48), nn.Softplus(), nn.Linear(48, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        sun, wind, drift = (2 * math.pi * torch.rand(64, generator=g) for _ in range(3))
        x = torch.stack([f(v) for v in (sun, wind, drift) for f in (torch.sin, torch.cos)], 1)
        home = sun + 0.5 * torch.sin(wind) + 0.2
        out = fn.normalize(net(x), dim=1)
        loss = (1 - out[:, 0] * torch.sin(home) - out[:, 1] * torch.cos(home)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
