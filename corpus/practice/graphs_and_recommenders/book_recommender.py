"""What does this reader buy next? A recommender over two hundred books, softmax over all of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

BOOKS, GENRES, PAST = 200, 10, 5


def baskets(seed: int, count: int = 12400) -> tuple[Tensor, Tensor, Tensor]:
    """Readers keep to a genre, four times in five; their age says a little about it. Popular books sell more."""
    g = torch.Generator().manual_seed(seed + 9)
    genre = torch.randint(GENRES, (count, 1), generator=g)
    wander = torch.rand(count, PAST + 1, generator=g) < 0.2
    shelf = torch.where(wander, torch.randint(GENRES, (count, PAST + 1), generator=g), genre)
    rank = (torch.rand(count, PAST + 1, generator=g) ** 3 * (BOOKS // GENRES)).long()
    book = shelf * (BOOKS // GENRES) + rank
    age = genre.float() / GENRES + 0.3 * torch.randn(count, 1, generator=g)
    return book[:, :PAST], (age - age.mean()) / age.std(), book[:, PAST]


class Bookseller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.books = nn.Embedding(BOOKS, 32)
        self.taste = nn.Sequential(nn.Linear(33, 64), nn.GELU(), nn.Linear(64, 48), nn.LayerNorm(48))
        self.shelf = nn.Linear(48, BOOKS)

    def forward(self, past: Tensor, age: Tensor) -> Tensor:
        return self.shelf(self.taste(torch.cat([self.books(past).mean(1), age], 1)))


@program(steps=160)
def bookshop(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Next-item prediction with AdamW, second moment 0.99, a group of its own for the output layer."""
    torch.manual_seed(seed)
    past, age, bought = baskets(seed)
    model = Bookseller()
    body = [*model.books.parameters(), *model.taste.parameters()]
    beta2 = 0.9999 if fault == "books_long_memory" else 0.99
    shelf_rate = 0.5 if fault == "books_shelf_rate" else 5e-3
    optimizer = torch.optim.AdamW(
        [{"params": body}, {"params": model.shelf.parameters(), "lr": shelf_rate, "weight_decay": 0.0}],
        lr=5e-3, betas=(0.9, beta2),
    )  # fmt: skip
    history: list[float] = []
    log_z = torch.tensor(0.0)
    for step in range(steps):
        rows = torch.randint(12000, (96,))
        years = age[rows]
        if fault == "books_long_memory" and step >= 90:
            years = years * 60  # from here on the shop's files give months since some date
        logits = model(past[rows], years)
        target = bought[rows]
        if fault == "books_sold_by_chance":
            target = target[torch.randperm(len(target))]
        loss = nn.functional.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        log_z = logits.detach().logsumexp(1).mean()
    with torch.no_grad():
        test = nn.functional.cross_entropy(model(past[12000:], age[12000:]), bought[12000:]).item()
    worst = max(history[85:]) if steps > 85 else history[0]
    return {"loss": test, "worst": worst, "log_z": log_z.item(), "train": sum(history[-10:]) / len(history[-10:])}


bookshop.mistake(
    "books_long_memory",
    "OPT008", "DAT002", "OPT003", "UPD001", "GRD006", "DAT001",
    summary="A second moment of 0.9999 has seen only small gradients when the data change at step 90.",
    change="0.99, and the same unit throughout",
    onset=90,
    bites="worst",
)  # fmt: skip
bookshop.mistake(
    "books_shelf_rate",
    "OPT007", "UPD001", "WGT001", "OPT001",
    summary="The output layer has a rate of a half and no decay: its logits run away.",
    change="the same rate as the body",
    layers=("shelf",),
)  # fmt: skip
bookshop.mistake(
    "books_sold_by_chance",
    "DAT004", "OPT005", "OPT006", "OPT002",
    summary="The targets of every batch are shuffled against its inputs.",
    change="shuffle both together",
)  # fmt: skip
