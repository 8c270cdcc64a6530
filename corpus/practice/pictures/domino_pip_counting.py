"""Photographs of domino tiles: how many pips are on the left half, how many on the right?"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR

from corpus.case import program

SIDE, MOST, TILES = 10, 6, 1600
PLACES = [(2, 2), (7, 7), (2, 7), (7, 2), (5, 2), (5, 7)]


def tiles(seed: int) -> tuple[Tensor, Tensor]:
    """Pictures of 10 × 20 with up to five pips a half, a little out of place and noisy."""
    rng = torch.Generator().manual_seed(77 + seed)
    pips = torch.randint(MOST, (TILES, 2), generator=rng)
    pictures = 0.25 * torch.randn(TILES, 1, SIDE, 2 * SIDE, generator=rng)
    order = torch.rand(TILES, 2, len(PLACES), generator=rng).argsort(2)
    for place, (row, column) in enumerate(PLACES):
        for half in range(2):
            shown = order[:, half, place] < pips[:, half]
            pictures[shown, 0, row : row + 2, half * SIDE + column : half * SIDE + column + 2] += 1.0
    return pictures, pips


class Tile(nn.Module):
    """Convolutions with group norm, then one head a half."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.SiLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 20, 3, padding=1), nn.GroupNorm(4, 20), nn.SiLU(),
        )  # fmt: skip
        self.dropout = nn.Dropout(drop)
        self.left = nn.Linear(20 * 5 * 10, MOST)
        self.right = nn.Linear(20 * 5 * 10, MOST)

    def forward(self, picture: Tensor) -> tuple[Tensor, Tensor]:
        h = self.dropout(self.features(picture).flatten(1))
        return self.left(h), self.right(h)


class Trainer:
    def __init__(self, model: Tile, data: tuple[Tensor, Tensor], steps: int, fault: str) -> None:
        self.model, self.fault = model, fault
        self.pictures, self.pips = data
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
        self.scheduler: LRScheduler = CosineAnnealingLR(self.optimizer, steps)
        if fault == "dominoes_milestones_in_batches":  # meant as epochs
            self.scheduler = MultiStepLR(self.optimizer, [3, 6, 9], gamma=0.1)

    def batch(self, step: int, order: Tensor) -> tuple[Tensor, Tensor]:
        start = step * 40 % 1200
        rows = order[start : start + 40]
        return self.pictures[rows], self.pips[rows]

    def fit(self, steps: int) -> None:
        criterion = nn.CrossEntropyLoss()
        order = torch.arange(1200)
        if self.fault == "dominoes_box_by_box":
            order = (self.pips[:1200, 0] * MOST + self.pips[:1200, 1]).argsort(stable=True)
        self.model.train()
        for step in range(steps):
            if step == 85 and self.fault == "dominoes_resumed_with_the_wrong_rate":
                self.scheduler.base_lrs = [2.0]
                for group in self.optimizer.param_groups:
                    group["lr"] *= 100
            picture, pips = self.batch(step, order)
            if step % 30 == 29 and self.fault != "dominoes_box_by_box":
                order = torch.randperm(1200)
            left, right = self.model(picture)
            loss = criterion(left, pips[:, 0]) + criterion(right, pips[:, 1])
            self.optimizer.zero_grad(set_to_none=False)
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()

    @torch.no_grad()
    def accuracy(self) -> float:
        self.model.eval()
        left, right = self.model(self.pictures[1200:])
        guesses = torch.stack([left.argmax(1), right.argmax(1)], 1)
        return (guesses == self.pips[1200:]).float().mean().item()


@program(steps=150, bites="accuracy")
def dominoes(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A small convolutional net with two heads, Nesterov momentum and a cosine."""
    torch.manual_seed(seed)
    pictures, pips = tiles(seed)
    if fault == "dominoes_half_of_the_labels":
        rng = torch.Generator().manual_seed(3)
        wrong = torch.rand(TILES, 1, generator=rng) < 0.5
        pips_seen = torch.where(wrong, torch.randint(MOST, pips.shape, generator=rng), pips)
        pips_seen[1200:] = pips[1200:]
        pips = pips_seen
    model = Tile(drop=0.97 if fault == "dominoes_dropout_as_a_share_to_keep" else 0.1)
    trainer = Trainer(model, (pictures, pips), steps, fault)
    trainer.fit(steps)
    return {"accuracy": trainer.accuracy()}


dominoes.mistake(
    "dominoes_milestones_in_batches",
    "OPT007", "UPD002",
    summary="The milestones are meant in epochs but the scheduler steps with every batch: after nine the rate is gone.",
    change="step the scheduler once an epoch",
)  # fmt: skip
dominoes.mistake(
    "dominoes_box_by_box",
    "DAT005",
    summary="The tiles come as they lie in the box, sorted by their numbers, and are never shuffled.",
    change="shuffle",
)
dominoes.mistake(
    "dominoes_dropout_as_a_share_to_keep",
    "MOD002", "MOD001", "GRD008",
    summary="Dropout of 0.97: three of a hundred features reach the heads.",
    change="dropout 0.1",
    layers=("dropout",),
)  # fmt: skip
dominoes.mistake(
    "dominoes_half_of_the_labels",
    "DAT004", "GRD008", "OPT006",
    summary="Half of the tiles carry the numbers of some other tile.",
    change="join labels by the tile's name",
)  # fmt: skip
dominoes.mistake(
    "dominoes_resumed_with_the_wrong_rate",
    "OPT007", "UPD001", "OPT001", "OPT003",
    summary="At step 85 the run is resumed with a rate a hundred times larger.",
    change="resume with the old rate",
    onset=85,
)  # fmt: skip
