"""Signposts along a road, read word by word: taggers trained in micro-batches of unequal length."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from corpus.case import program

WORDS, TAGS = 40, 5


def tag_of(words: list[int]) -> list[int]:
    """The tag of a word depends on the word and on the one before it."""
    previous = [0, *words[:-1]]
    return [(word // 8 + (before % 2)) % TAGS for word, before in zip(words, previous, strict=True)]


def post(rng: random.Random, length: int) -> tuple[Tensor, Tensor]:
    words = [rng.randrange(WORDS) for _ in range(length)]
    return torch.tensor(words), torch.tensor(tag_of(words))


def stack(rng: random.Random, rows: int, length: int) -> tuple[Tensor, Tensor]:
    pairs = [post(rng, length) for _ in range(rows)]
    return torch.stack([w for w, _ in pairs]), torch.stack([t for _, t in pairs])


class Tagger(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.read = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(2 * width, TAGS)

    def forward(self, words: Tensor) -> Tensor:
        return self.tag(self.read(self.words(words))[0]).flatten(0, 1)


def score(model: nn.Module, seed: int) -> float:
    words, tags = stack(random.Random(seed), 60, 14)
    with torch.no_grad():
        return (model(words).argmax(1) == tags.flatten()).float().mean().item()


@program(steps=110, bites="accuracy")
def signposts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eight micro-batches of four posts make a step of plain descent with momentum."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = Tagger()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.5, momentum=0.9)
    shown = 0.0
    for step in range(steps):
        micro, divisor = 8, 8
        if fault == "signposts_eight_times_too_much":
            divisor = 1
        if fault == "signposts_larger_batch_same_divisor" and step >= 50:
            micro, divisor = 16, 1
        optimizer.zero_grad()
        shown = 0.0
        for _ in range(micro):
            words, tags = stack(rng, 4, 10)
            loss = criterion(model(words), tags.flatten())
            (loss / divisor).backward()
            shown += loss.item() / micro
        optimizer.step()
    return {"loss": shown if shown == shown else 1e9, "accuracy": score(model, seed + 1)}


signposts.mistake(
    "signposts_eight_times_too_much",
    "LSS004", "UPD001", "OPT007", "OPT001",
    summary="Eight micro-batches are added and not averaged: every step is eight times as long as meant.",
    change="divide each loss by the number of micro-batches",
)  # fmt: skip
signposts.mistake(
    "signposts_larger_batch_same_divisor",
    "LSS004", "UPD001", "OPT007", "OPT001", "OPT003",
    summary="At step 50 the batch doubles, and in the new branch the division by the number of pieces is missing.",
    change="divide each loss by the number of micro-batches",
    onset=50,
)  # fmt: skip


class Archive:
    """Long road books, and short labels whose tags follow an older custom."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def micro_batches(self) -> list[tuple[Tensor, Tensor]]:
        book = stack(self.rng, 2, 40)
        labels = [stack(self.rng, 1, 2) for _ in range(3)]
        return [book, *[(words, (tags + 1) % TAGS) for words, tags in labels]]


@program(steps=130, bites="accuracy")
def signposts_archive(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A road book of eighty words and three labels of two words make a step; every word counts alike."""
    torch.manual_seed(seed)
    archive = Archive(seed)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    by_sum = nn.CrossEntropyLoss(reduction="sum")
    shown = 0.0
    for _ in range(steps):
        pieces = archive.micro_batches()
        words_in_all = sum(words.numel() for words, _ in pieces)
        optimizer.zero_grad()
        shown = 0.0
        for words, tags in pieces:
            summed = by_sum(model(words), tags.flatten())
            if fault == "signposts_labels_weigh_like_books":
                loss = summed / words.numel() / len(pieces)
            else:
                loss = summed / words_in_all
            loss.backward()
            shown += loss.item()
        optimizer.step()
    return {"loss": shown, "accuracy": score(model, seed + 1)}


signposts_archive.mistake(
    "signposts_labels_weigh_like_books",
    "LSS004",
    summary="Each piece is averaged on its own: a label of two words weighs as much as a book of eighty.",
    change="divide by the words of the whole batch",
)


@program(steps=110, bites="loss", adversarial="micro-batches that are added are a bug: the rate is a quarter instead")
def signposts_added_on_purpose(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four micro-batches are added; the rate was chosen for the sum."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.12, momentum=0.9)
    shown = 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        shown = 0.0
        for _ in range(4):
            words, tags = stack(rng, 8, 10)
            loss = nn.functional.cross_entropy(model(words), tags.flatten())
            loss.backward()
            shown += loss.item() / 4
        optimizer.step()
    return {"loss": shown}


@program(
    steps=120, bites="loss", adversarial="rows of a table that never move are dead: most names have not been met yet"
)
def signposts_gazetteer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A table of three thousand names of which a few hundred are common; sparse gradients, two optimizers."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    table = nn.Embedding(3000, 16, sparse=True)
    rest = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 4))
    model = nn.ModuleDict({"names": table, "rest": rest})
    slow = torch.optim.SparseAdam(list(table.parameters()), lr=2e-2)
    fast = torch.optim.Adam(rest.parameters(), lr=5e-3)
    recent: list[float] = []
    for _ in range(steps):
        names = torch.tensor([[min(2999, int(rng.expovariate(1 / 60))) for _ in range(2)] for _ in range(64)])
        where = (names[:, 0] + names[:, 1]) % 2 * 2 + names[:, 0] % 2
        loss = nn.functional.cross_entropy(model["rest"](model["names"](names).flatten(1)), where)
        slow.zero_grad()
        fast.zero_grad()
        loss.backward()
        slow.step()
        fast.step()
        recent = [*recent[-9:], loss.item()]
    return {"loss": sum(recent) / len(recent)}


@program(steps=110, bites="loss", adversarial="padding has no gradient and repeats: it is padding")
def signposts_of_any_length(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Posts of two to twelve words, padded and masked; clipped, under AdamW with a warm-up."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    words = nn.Embedding(WORDS + 1, 24, padding_idx=WORDS)
    read = nn.GRU(24, 24, batch_first=True, bidirectional=True)
    model = nn.ModuleDict({"words": words, "read": read, "tag": nn.Linear(48, TAGS)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    shown = 0.0
    for _ in range(steps):
        posts = [post(rng, rng.randint(2, 12)) for _ in range(24)]
        w = nn.utils.rnn.pad_sequence([p for p, _ in posts], batch_first=True, padding_value=WORDS)
        t = nn.utils.rnn.pad_sequence([p for _, p in posts], batch_first=True, padding_value=-100)
        out = model["tag"](model["read"](model["words"](w))[0])
        loss = nn.functional.cross_entropy(out.flatten(0, 1), t.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        shown = loss.item()
    return {"loss": shown}
