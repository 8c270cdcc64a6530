"""Freight papers of every length: each word of a paper gets a tag, several small batches make one step."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from corpus.case import program

WORDS, TAGS = 30, 6
TABLE_SEED = 99  # which word has which tag is the same for all papers


class Papers:
    """An endless pile: long papers with good tags, and scraps of one or two words tagged by whoever was there."""

    def __init__(self, seed: int, scraps: float = 0.0) -> None:
        self.g = torch.Generator().manual_seed(seed)
        table = torch.Generator().manual_seed(TABLE_SEED)
        self.tag_of = torch.randint(TAGS, (2, WORDS), generator=table)
        self.scraps = scraps

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """A word's tag depends on whether the word before it was in the upper half of the dictionary."""
        is_scrap = torch.rand(1, generator=self.g).item() < self.scraps
        length = 2 if is_scrap else int(torch.randint(10, 21, (1,), generator=self.g))
        words = torch.randint(WORDS, (size, length), generator=self.g)
        before = torch.cat([torch.zeros(size, 1, dtype=torch.long), words[:, :-1]], 1) >= WORDS // 2
        tags = self.tag_of[before.long(), words]
        if is_scrap:
            tags = torch.randint(TAGS, tags.shape, generator=self.g)
        return words, tags

    def window(self, pieces: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(pieces):
            yield self.batch(size)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 24)
        self.reader = nn.GRU(24, 32, batch_first=True)
        self.tags = nn.Linear(32, TAGS)

    def forward(self, words: Tensor) -> Tensor:
        return self.tags(self.reader(self.table(words))[0])


def held_out(model: nn.Module, seed: int) -> float:
    pile = Papers(seed + 5000)
    with torch.no_grad():
        right = [(model(words).argmax(-1) == tags).float().mean() for words, tags in pile.window(6, 40)]
    return torch.stack(right).mean().item()


@program(steps=110, bites="accuracy")
def freight(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eight pieces of four papers for each step of SGD, each loss divided by eight."""
    torch.manual_seed(seed)
    model, pile = Tagger(), Papers(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.6, momentum=0.9)
    total = math.nan
    for step in range(steps):
        pieces, divisor = 8, 8
        if fault == "freight_eight_added" or (fault == "freight_added_after_the_refactoring" and step >= 20):
            divisor = 1
        optimizer.zero_grad()
        total = 0.0
        for words, tags in pile.window(pieces, 4):
            loss = nn.functional.cross_entropy(model(words).flatten(0, 1), tags.flatten()) / divisor
            loss.backward()
            total += loss.item()
        optimizer.step()
    return {"loss": total if math.isfinite(total) else 1e9, "accuracy": held_out(model, seed)}


freight.mistake(
    "freight_eight_added", "LSS004", "OPT007", "UPD001",
    summary="The losses of the eight pieces are added, not averaged: every step is eight times as long.",
    change="divide by eight",
)  # fmt: skip
freight.mistake(
    "freight_added_after_the_refactoring", "LSS004", "OPT007", "UPD001",
    summary="From step 20 on another function does the steps, and forgot to divide by the pieces.",
    change="divide by eight",
    onset=20,
)  # fmt: skip


@program(steps=150, bites="accuracy")
def freight_with_scraps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Papers and carelessly tagged scraps: every word of a step counts alike, whichever piece it came in."""
    torch.manual_seed(seed)
    model, pile = Tagger(), Papers(seed, scraps=0.6)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    value = math.nan
    for _ in range(steps):
        window = list(pile.window(8, 2))
        count = sum(tags.numel() for _, tags in window)
        optimizer.zero_grad()
        value = 0.0
        for words, tags in window:
            scores = model(words).flatten(0, 1)
            if fault == "freight_scraps_weigh_like_papers":
                loss = nn.functional.cross_entropy(scores, tags.flatten()) / len(window)
            else:
                loss = nn.functional.cross_entropy(scores, tags.flatten(), reduction="sum") / count
            loss.backward()
            value += loss.item()
        optimizer.step()
    return {"loss": value, "accuracy": held_out(model, seed)}


freight_with_scraps.mistake(
    "freight_scraps_weigh_like_papers", "LSS004", "GRD008",
    summary="The mean of each piece's mean: a scrap of four words weighs as much as a paper of forty.",
    change="sum over words, divided by all words of the step",
)  # fmt: skip
