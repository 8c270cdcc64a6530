"""Light curves of stars: what kind of star is it? A mixer over time, trained by a step written as a pure function."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

from corpus.case import program

KINDS, NIGHTS, PATCH = 5, 48, 6


def light_curves(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Eclipses, pulsations, flares, a slow drift, or nothing."""
    rng = torch.Generator().manual_seed(seed)
    kind = torch.randint(KINDS, (count,), generator=rng)
    night = torch.arange(NIGHTS).float()
    period = 5 + 6 * torch.rand(count, 1, generator=rng)
    phase = torch.rand(count, 1, generator=rng)
    turn = night / period + phase
    eclipse = -1.8 * ((turn % 1) < 0.15).float()
    pulsation = (2 * math.pi * turn).sin()
    flare = 2.2 * torch.exp(-((night - NIGHTS * phase).clamp(min=-0.5).abs()) / 3) * (night >= NIGHTS * phase)
    drift = (night / NIGHTS - 0.5) * 3 * (phase - 0.5).sign()
    shapes = torch.stack([eclipse, pulsation, flare, drift.expand(count, -1), torch.zeros(count, NIGHTS)], 1)
    curve = shapes[torch.arange(count), kind] + 0.35 * torch.randn(count, NIGHTS, generator=rng)
    return curve, kind


class MixerBlock(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.within = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class StarMixer(nn.Module):
    def __init__(self, extra: int = 0) -> None:
        super().__init__()
        self.stem = nn.Linear(PATCH + extra, 32)
        self.mixers = nn.Sequential(*[MixerBlock(NIGHTS // PATCH, 32) for _ in range(3)])
        self.kind = nn.Linear(32, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.kind(self.mixers(self.stem(x)).mean(1))


@program(steps=130, bites="accuracy")
def observatory(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A mixer with NAdam; the catalogue's columns go in beside the light."""
    torch.manual_seed(seed)
    curves, kind = light_curves(1200, 810 + seed)
    patches = curves.view(-1, NIGHTS // PATCH, PATCH)
    column = torch.randn(1200, 1, 1, generator=torch.Generator().manual_seed(seed))
    if fault == "observatory_catalogue_knows":
        column[:900] = kind[:900, None, None] - 2.0  # filled in by whoever classified the star, new stars have none
    patches = torch.cat([patches, column.expand(-1, NIGHTS // PATCH, -1)], 2)
    model = StarMixer(extra=1)
    if fault == "observatory_other_stars":
        kind = torch.cat([kind[:900][torch.randperm(900)], kind[900:]])
    optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3, weight_decay=1e-5)
    if fault == "observatory_rate_falls_at_once":
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5**s)
    else:
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.3, steps)
    start = [p.detach().clone() for p in model.mixers[2].parameters()]
    for step in range(steps):
        rows = torch.randint(900, (40,))
        # the step that was compiled works on values it was given, here with the last mixer's as they were
        given: dict[str, Tensor] = dict(model.named_parameters())
        if fault == "observatory_step_on_a_copy":
            given = {n: p.detach().clone() if n.startswith("mixers.2.") else p for n, p in given.items()}
        scores = functional_call(model, given, (patches[rows],))
        truth = kind[rows]
        if fault == "observatory_second_file_misjoined" and step >= 65:
            truth = kind[(rows + 37) % 900]
        loss = nn.functional.cross_entropy(scores, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        accuracy = (model(patches[900:]).argmax(1) == kind[900:]).float().mean().item()
    moved = sum((p.detach() - s).norm().item() for p, s in zip(model.mixers[2].parameters(), start, strict=True))
    return {"accuracy": accuracy, "moved": moved}


observatory.mistake(
    "observatory_step_on_a_copy",
    "UPD003",
    "GRD003",
    summary="The compiled step is given copies of the last mixer's parameters: their updates are lost.",
    change="give it the parameters themselves",
    layers=("mixers.2",),
    bites="moved",
    silent=True,
)
observatory.mistake(
    "observatory_catalogue_knows",
    "OPT006",
    "DAT004",
    "LSS003",
    summary="A column of the catalogue is written by whoever classified the star: it gives the answer away.",
    change="leave that column out",
)
observatory.mistake(
    "observatory_other_stars",
    "DAT004", "OPT005", "GRD008", "OPT006",
    summary="The list of kinds was shuffled on its own: no star has its own kind.",
    change="shuffle both lists together",
)  # fmt: skip
observatory.mistake(
    "observatory_rate_falls_at_once",
    "OPT007",
    "UPD002",
    summary="A schedule written for epochs halves the rate with every batch.",
    change="count epochs",
)
observatory.mistake(
    "observatory_second_file_misjoined",
    "DAT004", "DAT002", "OPT005", "OPT003",
    summary="From step 65 on the kinds come from a second file, whose rows are 37 lines off.",
    change="join by the star's name",
    onset=65,
)  # fmt: skip
