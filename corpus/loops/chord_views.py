"""Chords heard twice, each time with other noise and loudness: features learned without labels."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program

KINDS = 8
POINTS = 32


class Chords:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        notes = torch.rand(KINDS, 3, generator=torch.Generator().manual_seed(5)) * 2.5 + 0.4
        self.notes = notes

    def batch(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Two hearings of each chord, and its kind."""
        kind = torch.randint(0, KINDS, (count,), generator=self.generator)
        return self.hear(kind), self.hear(kind), kind

    def hear(self, kind: Tensor) -> Tensor:
        time = torch.linspace(0, 2 * math.pi, POINTS)
        phase = torch.rand(len(kind), 3, 1, generator=self.generator) * 0.9
        waves = torch.sin(self.notes[kind][:, :, None] * time + phase).sum(1)
        loudness = torch.rand(len(kind), 1, generator=self.generator) + 0.5
        drift = 3 * torch.randn(len(kind), 2, generator=self.generator) @ torch.stack([time - math.pi, time.cos()])
        return loudness * waves + drift + 0.4 * torch.randn(len(kind), POINTS, generator=self.generator)


@torch.no_grad()
def neighbour_accuracy(encoder: nn.Module, seed: int) -> float:
    """Share of chords whose five nearest neighbours vote for their kind."""
    encoder.eval()
    chords = Chords(seed)
    heard, _, kind = chords.batch(400)
    tests, _, truth = chords.batch(400)
    known = functional.normalize(encoder(heard), dim=1)
    asked = functional.normalize(encoder(tests), dim=1)
    votes = kind[(asked @ known.T).topk(5, dim=1).indices]
    return (votes.mode(1).values == truth).float().mean().item()


def projector(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))


@program(steps=300, bites="accuracy")
def chord_contrast(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Two hearings of one chord attract, those of others repel."""
    torch.manual_seed(seed)
    chords = Chords(seed + 1)
    encoder = nn.Sequential(nn.Linear(POINTS, 96), nn.ReLU(), nn.Linear(96, 48))
    head = projector(48)
    eps = 1.0 if mistake == "chord_contrast_thick" else 1e-8
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=3e-3, eps=eps)
    for _ in range(steps):
        one, two, _ = chords.batch(64)
        if mistake == "chord_contrast_second_loader":
            two = two[torch.randperm(len(two), generator=chords.generator)]
        first, second = (functional.normalize(head(encoder(heard)), dim=1) for heard in (one, two))
        likeness = first @ second.T / 0.2
        pairs = torch.arange(len(one))
        loss = (functional.cross_entropy(likeness, pairs) + functional.cross_entropy(likeness.T, pairs)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": neighbour_accuracy(encoder, 77)}


chord_contrast.mistake(
    "chord_contrast_second_loader",
    "DAT004",
    "OPT005",
    summary="The second hearings come from a loader that shuffles by itself.",
    change="both hearings of a pair are of one chord",
)
chord_contrast.mistake(
    "chord_contrast_thick",
    "OPT008",
    "UPD002",
    summary="Adam's eps is one, far above any gradient here.",
    change="eps of 1e-8",
)


@program(steps=360, bites="accuracy")
def chord_bootstrap(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A network predicts what a slow average of itself makes of the other hearing."""
    torch.manual_seed(seed)
    chords = Chords(seed + 1)
    online = nn.Sequential(nn.Linear(POINTS, 96), nn.ReLU(), nn.Linear(96, 48), nn.Tanh())
    slow = copy.deepcopy(online)
    slow.requires_grad_(False)
    predictor = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 48))
    moved = [*online.parameters(), *predictor.parameters()]
    optimizer = torch.optim.Adam(moved, lr=2e-3, weight_decay=1e-5)
    for _ in range(steps):
        one, two, _ = chords.batch(96)
        loss = torch.zeros(())
        for heard, other in ((one, two), (two, one)):
            wanted = online(other) if mistake == "chord_bootstrap_of_itself" else slow(other)
            loss = loss + functional.mse_loss(predictor(online(heard)), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(slow.parameters(), online.parameters()):
                old.lerp_(new, 0.01)
    return {"accuracy": neighbour_accuracy(online, 77)}


chord_bootstrap.mistake(
    "chord_bootstrap_of_itself",
    "ACT003",
    layers=("online",),
    summary="The network is to predict itself, and its gradient makes both sides easy to predict.",
    change="it predicts a slow copy without gradients",
)


@healthy(steps=300, adversarial="the loss is negative from start to end; one of two branches is cut off on purpose")
def chord_siamese(steps: int, seed: int) -> dict[str, float]:
    """Two hearings, one encoder, a predictor on one side and a stopped gradient on the other."""
    torch.manual_seed(seed)
    chords = Chords(seed + 1)
    encoder = nn.Sequential(nn.Linear(POINTS, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 48), nn.BatchNorm1d(48))
    predictor = nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 48))
    optimizer = torch.optim.SGD(
        [*encoder.parameters(), *predictor.parameters()], lr=0.2, momentum=0.9, weight_decay=1e-4
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    for _ in range(steps):
        one, two, _ = chords.batch(96)
        first, second = encoder(one), encoder(two)
        loss = -functional.cosine_similarity(predictor(first), second.detach()).mean() / 2
        loss = loss - functional.cosine_similarity(predictor(second), first.detach()).mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"loss": 1 - neighbour_accuracy(encoder, 77)}


@healthy(steps=300, adversarial="gradients sum over a cross-correlation and are hundreds of times the usual size")
def chord_decorrelation(steps: int, seed: int) -> dict[str, float]:
    """The features of two hearings are to correlate one to one, and with no others."""
    torch.manual_seed(seed)
    chords = Chords(seed + 1)
    encoder = nn.Sequential(nn.Linear(POINTS, 96), nn.ReLU(), nn.Linear(96, 32))
    head = nn.Sequential(nn.Linear(32, 48), nn.BatchNorm1d(48, affine=False))
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=2e-3)
    for _ in range(steps):
        one, two, _ = chords.batch(128)
        across = head(encoder(one)).T @ head(encoder(two)) / len(one)
        on = (across.diagonal() - 1).square().sum()
        off = across.square().sum() - across.diagonal().square().sum()
        loss = 50 * (on + 0.02 * off)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": 1 - neighbour_accuracy(encoder, 77)}
