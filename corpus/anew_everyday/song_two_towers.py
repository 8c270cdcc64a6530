"""Match listeners and songs by two towers with negatives from the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program
from undertow.demos.case import Fault, sick

LISTENERS, SONGS, DIMENSION = 600, 500, 32


def plays(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Listeners and a song each that suits them."""
    fixed = torch.Generator().manual_seed(8)
    liking = torch.randn(LISTENERS, 4, generator=fixed) @ torch.randn(4, SONGS, generator=fixed)
    g = torch.Generator().manual_seed(seed)
    listener = torch.randint(LISTENERS, (count,), generator=g)
    return listener, torch.multinomial((1.5 * liking[listener]).softmax(1), 1, generator=g).squeeze(1)


class Towers(nn.Module):
    def __init__(self, start: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.listener, self.song = nn.Embedding(LISTENERS, DIMENSION), nn.Embedding(SONGS, DIMENSION)
        self.popularity = nn.Embedding(SONGS, 1)
        for table in (self.listener, self.song):
            start(table.weight)  # at fault: songs_both_towers_at_zero

    def forward(self, listener: Tensor, songs: Tensor) -> Tensor:
        return self.listener(listener) @ self.song(songs).T + self.popularity(songs).T


def rank_loss(model: nn.Module, listener: Tensor, song: Tensor) -> float:
    with torch.no_grad():
        return F.cross_entropy(model(listener, torch.arange(SONGS)), song).item()


@program(steps=1200, bites="loss")
def song_towers(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Two embedding tables under a softmax over the songs, AdamW."""
    torch.manual_seed(seed)
    listener, song = plays(seed, 40000)
    zero = mistake == "songs_both_towers_at_zero"
    model = Towers(nn.init.zeros_ if zero else lambda w: nn.init.normal_(w, std=0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=1e-3)
    for _ in range(steps):
        rows = torch.randint(len(listener), (128,))
        loss = F.cross_entropy(model(listener[rows], torch.arange(SONGS)), song[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": rank_loss(model, *plays(seed + 5, 2000))}


song_towers.mistake(
    "songs_both_towers_at_zero",
    "WGT002",
    "GRD004",
    summary="Both tables of a product start at zero: each waits for the other.",
    change="small random numbers",
    layers=("listener", "song"),
)


class Encoder(nn.Sequential):
    """Raw features of a song → a point."""

    def __init__(self, features: int) -> None:
        super().__init__(nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))


def distances(a: Tensor, b: Tensor, safe: bool) -> Tensor:
    squares = (a[:, None] - b[None]).square().sum(-1)
    if safe:
        return torch.sqrt(squares + 1e-8)
    return torch.sqrt(squares)  # at fault: songs_distance_to_itself


def recordings(seed: int, count: int) -> tuple[Tensor, Tensor]:
    centres = torch.randn(12, 20, generator=torch.Generator().manual_seed(3))
    g = torch.Generator().manual_seed(seed)
    artist = torch.randint(12, (count,), generator=g)
    return centres[artist] + 0.9 * torch.randn(count, 20, generator=g), artist


@sick(
    "NUM001",
    steps=1000,
    change="the root of squares + 1e-8",
    layers=("4",),
    bites="error",
    architecture="perceptron",
)
def songs_distance_to_itself(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Triplets within the batch: the root of the distance of each song to itself, which is zero, has no gradient."""
    torch.manual_seed(seed)
    sounds, artist = recordings(seed, 1200)
    model = Encoder(20)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(sounds), (48,))
        points = model(sounds[rows])
        apart = distances(points, points, safe=not fault)
        same = artist[rows][:, None] == artist[rows][None]
        farthest = (apart * same).amax(1)
        nearest = (apart + 1e3 * same).amin(1)
        loss = F.softplus(farthest - nearest).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test, test_artist = recordings(seed + 9, 400)
    with torch.no_grad():
        apart = torch.cdist(model(test), model(test)).fill_diagonal_(1e9)
    return {"error": (test_artist[apart.argmin(1)] != test_artist).float().mean().item()}
