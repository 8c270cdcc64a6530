"""A lending library: how many stars will a reader give a title? Tables of vectors, and what goes wrong with them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from corpus.case import program

READERS, TITLES = 60, 40


class Loans:
    """All loans of a year, with stars; a twentieth is kept for the test."""

    def __init__(self, seed: int, count: int = 6000) -> None:
        g = torch.Generator().manual_seed(seed)
        taste, kind = torch.randn(READERS, 3, generator=g), torch.randn(TITLES, 3, generator=g)
        self.reader = torch.randint(READERS, (count,), generator=g)
        self.title = torch.randint(TITLES, (count,), generator=g)
        self.age = torch.randn(count, 1, generator=g)
        match = (taste[self.reader] * kind[self.title]).sum(1) + 0.5 * self.age[:, 0]
        self.stars = match / match.std() + 0.1 * torch.randn(count, generator=g)
        self.train = torch.arange(count - 300)
        self.test = torch.arange(count - 300, count)


class Taste(nn.Module):
    def __init__(self, extra: int = 1, width: int = 8) -> None:
        super().__init__()
        self.readers = nn.Embedding(READERS, width)
        self.titles = nn.Embedding(TITLES, width)
        nn.init.normal_(self.readers.weight, std=0.3)
        nn.init.normal_(self.titles.weight, std=0.3)
        self.side = nn.Sequential(nn.Linear(3 * width + extra, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, reader: Tensor, title: Tensor, side: Tensor) -> Tensor:
        r, t = self.readers(reader), self.titles(title)
        return (r * t).sum(1) + self.side(torch.cat([r, t, r * t, side], 1)).squeeze(1)


class CapturedOptimizer(torch.optim.Optimizer):
    """RMSprop written for a captured graph: everything in place. `lost`: what is rebound is not written back."""

    def __init__(self, params: Any, lr: float, lost: bool) -> None:
        super().__init__(params, {"lr": lr})
        self.lost = lost

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                size = self.state[p].setdefault("size", torch.zeros_like(p))
                size.mul_(0.95).addcmul_(p.grad, p.grad, value=0.05)
                update = group["lr"] * p.grad / (size.sqrt() + 1e-6)
                if self.lost and p.shape[0] == READERS:  # the branch for large tables makes a new tensor
                    p = p - update
                else:
                    p.sub_(update)


def finite(value: float) -> float:
    return min(value, 1e6) if math.isfinite(value) else 1e6


@program(steps=200)
def library_stars(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Factors and a small network, AdamW, batches of 128 loans."""
    torch.manual_seed(seed)
    loans = Loans(seed)
    stars, rows = loans.stars.clone(), loans.train
    if fault == "library_joined_by_row":  # the stars come from a file in another order
        stars[rows] = stars[rows][torch.randperm(len(rows))]
    if fault == "library_best_first":
        rows = rows[stars[rows].argsort(descending=True)]
    side = loans.age
    if fault == "library_average_with_the_answer":
        side = torch.cat([side, stars[:, None]], 1)
    model = Taste(extra=side.shape[1])
    adam = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=1e-3)
    order = torch.Generator()
    for step in range(steps):
        if step == 0 or fault == "library_seeded_in_the_loop":
            order.manual_seed(seed)
        if fault == "library_best_first":
            batch = rows.roll(-128 * step)[:128]
        else:
            batch = rows[torch.randint(len(rows), (128,), generator=order)]
        guess = model(loans.reader[batch], loans.title[batch], side[batch])
        loss = nn.functional.mse_loss(guess, stars[batch])
        adam.zero_grad()
        loss.backward()
        adam.step()
    if fault == "library_average_with_the_answer":  # nobody knows it for a loan of tomorrow
        side[:, 1] = 0.0
    t = loans.test
    with torch.no_grad():
        test = nn.functional.mse_loss(model(loans.reader[t], loans.title[t], side[t]), loans.stars[t]).item()
    return {"loss": finite(test)}


library_stars.mistake(
    "library_joined_by_row",
    "DAT004", "OPT005",
    summary="Stars are joined by row number from a file in another order.",
    change="join by the number of the loan",
)  # fmt: skip
library_stars.mistake(
    "library_best_first",
    "DAT005",
    summary="The export is sorted by stars, and batches are taken from the top.",
    change="shuffle",
)
library_stars.mistake(
    "library_average_with_the_answer",
    "OPT006", "DAT004",
    summary="A column of the table is made from the stars that are to be predicted.",
    change="averages of earlier loans only",
)  # fmt: skip
library_stars.mistake(
    "library_seeded_in_the_loop",
    "DAT005", "OPT006",
    summary="The sampler is seeded in every step: all steps see the same 128 loans.",
    change="seed once",
)  # fmt: skip


@program(steps=180)
def library_captured(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same model with an optimizer of one's own, made for captured graphs."""
    torch.manual_seed(seed)
    loans = Loans(seed)
    model = Taste()
    before = model.readers.weight.detach().clone()
    optimizer = CapturedOptimizer(model.parameters(), lr=0.01, lost=fault == "library_update_is_lost")
    for _ in range(steps):
        batch = torch.randint(len(loans.train), (256,))
        guess = model(loans.reader[batch], loans.title[batch], loans.age[batch])
        loss = nn.functional.mse_loss(guess, loans.stars[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    t = loans.test
    with torch.no_grad():
        test = nn.functional.mse_loss(model(loans.reader[t], loans.title[t], loans.age[t]), loans.stars[t]).item()
    return {"loss": finite(test), "moved": (model.readers.weight.detach() - before).norm().item()}


library_captured.mistake(
    "library_update_is_lost",
    "UPD003",
    summary="The optimizer makes a new tensor for large tables instead of writing into the old one.",
    change="p.sub_(…)",
    layers=("readers",),
    bites="moved",
    silent=True,
)


@program(steps=180, adversarial="a table of which most rows have no gradient is unused")
def library_rare_titles(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Twenty thousand titles with sparse gradients, most of them lent once a year; two optimizers."""
    torch.manual_seed(seed)
    loans = Loans(seed)
    shelf = torch.randint(200, (len(loans.title),), generator=torch.Generator().manual_seed(seed))
    spread = loans.title + TITLES * torch.where(shelf < 20, shelf, 0)  # one loan in ten is from another shelf
    model = Taste()
    model.titles = nn.Embedding(20_000, 8, sparse=True)
    nn.init.normal_(model.titles.weight, std=0.3)
    table = torch.optim.SparseAdam(model.titles.parameters(), lr=0.02)
    rest = torch.optim.Adam([p for n, p in model.named_parameters() if not n.startswith("titles")], lr=0.02)
    loss = torch.zeros(())
    for _ in range(steps):
        batch = torch.randint(len(loans.train), (128,))
        loss = nn.functional.mse_loss(model(loans.reader[batch], spread[batch], loans.age[batch]), loans.stars[batch])
        table.zero_grad()
        rest.zero_grad()
        loss.backward()
        table.step()
        rest.step()
    return {"loss": loss.item()}


class Waves(nn.Module):
    """Random Fourier features: a wide layer that is drawn once and kept."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = nn.Linear(5, 256).requires_grad_(False)
        nn.init.normal_(self.draw.weight, std=0.6)
        nn.init.uniform_(self.draw.bias, 0, 2 * math.pi)
        self.readout = nn.Linear(256, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout((2 / 256) ** 0.5 * self.draw(x).cos())


@program(steps=180, adversarial="a layer of random weights that does not train was frozen by mistake")
def library_random_waves(steps: int, seed: int, fault: str) -> dict[str, float]:
    """How long will a loan last? Random features on purpose, only the readout is trained."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Waves()
    sgd = torch.optim.SGD(model.readout.parameters(), lr=0.5, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        x = torch.randn(96, 5, generator=g)
        y = (x[:, :1] * x[:, 1:2]).tanh() + x[:, 2:3].abs()
        loss = nn.functional.mse_loss(model(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return {"loss": loss.item()}


@program(steps=180, bites="accuracy", adversarial="a loss that falls by a third only is on a plateau")
def library_which_of_two(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Bayesian personalised ranking: the title that was liked more before the one that was liked less."""
    torch.manual_seed(seed)
    loans = Loans(seed)
    model = Taste(extra=1)
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    loss = torch.zeros(())
    for _ in range(steps):
        a, b = torch.randint(len(loans.train), (2, 192)).unbind(0)
        sure = model(loans.reader[a], loans.title[a], loans.age[a]) - model(
            loans.reader[b], loans.title[b], loans.age[b]
        )
        prefers = torch.bernoulli(torch.sigmoid(2 * (loans.stars[a] - loans.stars[b])))
        loss = nn.functional.binary_cross_entropy_with_logits(sure, prefers)
        adam.zero_grad()
        loss.backward()
        adam.step()
    t = loans.test
    with torch.no_grad():
        rank = model(loans.reader[t], loans.title[t], loans.age[t])
    agree = ((rank[:150] > rank[150:]) == (loans.stars[t[:150]] > loans.stars[t[150:]])).float().mean().item()
    return {"loss": loss.item(), "accuracy": agree}
