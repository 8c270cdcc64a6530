"""Metric learning: the same digit should lie close, another one far away."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program


class Signature(nn.Module):
    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.project = nn.Linear(96, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.body(x))


class Triplets:
    """Anchor, another picture of the same digit, a picture of another digit."""

    def __init__(self, x: Tensor, y: Tensor, seed: int) -> None:
        self.x, self.y = x, y
        self.g = torch.Generator().manual_seed(seed)
        self.of = [torch.nonzero(y == digit).flatten() for digit in range(10)]

    def batch(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        digits = torch.randint(10, (n,), generator=self.g)
        others = (digits + torch.randint(1, 10, (n,), generator=self.g)) % 10

        def one(digit: int) -> Tensor:
            rows = self.of[digit]
            return self.x[rows[torch.randint(len(rows), (1,), generator=self.g)]]

        triples = [(one(d), one(d), one(o)) for d, o in zip(digits.tolist(), others.tolist())]
        anchor, same, other = (torch.cat(part) for part in zip(*triples))
        return anchor, same, other

    def stream(self, n: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        while True:
            yield self.batch(n)


@program(steps=120, bites="retrieval")
def digit_signatures(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Triplet loss on a three-layer network, SGD with momentum; from step 60 eight micro-batches make one step."""
    torch.manual_seed(seed)
    pictures, digits = load_digits(return_X_y=True)
    x = torch.tensor(pictures, dtype=torch.float32) / 8 - 1
    y = torch.tensor(digits)
    net = Signature()
    triplets = Triplets(x[:1200], y[:1200], seed).stream(32)
    rate = 12.0 if fault == "rate_from_the_normalised_variant" else 0.15
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    for step in range(steps):
        pieces = 1 if step < 60 else 8
        optimizer.zero_grad()
        for _ in range(pieces):
            anchor, same, other = (net(part) for part in next(triplets))
            near, far = F.pairwise_distance(anchor, same), F.pairwise_distance(anchor, other)
            loss = near.mean() if fault == "only_pulls_together" else F.relu(near - far + 1.0).mean()
            if fault == "eight_pieces_not_averaged":
                loss.backward()
            else:
                (loss / pieces).backward()
        optimizer.step()

    with torch.no_grad():
        shelf, question = net(x[:1200]), net(x[1200:])
        nearest = torch.cdist(question, shelf).argmin(1)
        retrieval = (y[nearest] == y[1200:]).float().mean().item()
        a, p, n = Triplets(x[1200:], y[1200:], seed).batch(300)
        violation = F.relu((net(a) - net(p)).norm(dim=1) - (net(a) - net(n)).norm(dim=1) + 1.0).mean()
    return {
        "retrieval": retrieval if shelf.isfinite().all() else 0.0,
        "violation": violation.item() if violation.isfinite() else 1e6,
        "spread": question.std(0).mean().item() if question.isfinite().all() else 1e6,
    }


digit_signatures.mistake(
    "only_pulls_together",
    "ACT003",
    summary="The loss pulls equal digits together and pushes nothing apart: all signatures become one point.",
    change="the triplet loss with its margin",
    layers=("project", "body"),
    bites="spread",
)
digit_signatures.mistake(
    "eight_pieces_not_averaged",
    "LSS004", "OPT007", "UPD001", "OPT001", "GRD002",
    summary="From step 60 eight micro-batches are added and not averaged: the step is eight times too long.",
    change="divide the loss by the number of pieces",
    onset=60,
    bites="violation",
)  # fmt: skip
digit_signatures.mistake(
    "rate_from_the_normalised_variant",
    "OPT007", "UPD001", "ACT001", "OPT001",
    summary="A learning rate of twelve, copied from a variant with normalised gradients: units die at once.",
    change="lr=0.15",
)  # fmt: skip
