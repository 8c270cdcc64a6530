"""Data-parallel training by hand, two copies of a network in one process, gradients averaged between them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from corpus.case import program


def circles(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Four rings around the origin in ten dimensions, of which two matter."""
    ring = torch.randint(4, (count,), generator=generator)
    angle = torch.rand(count, generator=generator) * 2 * torch.pi
    x = torch.randn(count, 10, generator=generator)
    x[:, 0], x[:, 1] = (ring + 0.7) * angle.cos(), (ring + 0.7) * angle.sin()
    x[:, :2] += 0.1 * torch.randn(count, 2, generator=generator)
    return x, ring


def build() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(10, 48), nn.BatchNorm1d(48), nn.ReLU(),
        nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(),
        nn.Linear(48, 4),
    )  # fmt: skip


class Copies(nn.Module):
    """Rank 0 and rank 1; each sees its own half of the batch."""

    def __init__(self, same_start: bool = True) -> None:
        super().__init__()
        self.rank0 = build()
        self.rank1 = copy.deepcopy(self.rank0) if same_start else build()

    def average_gradients(self, skip: str = "") -> None:
        for (name, a), b in zip(self.rank0.named_parameters(), self.rank1.parameters(), strict=True):
            if name == skip or a.grad is None or b.grad is None:
                continue
            mean = (a.grad + b.grad) / 2
            a.grad, b.grad = mean.clone(), mean.clone()

    def average_buffers(self) -> None:
        for a, b in zip(self.rank0.buffers(), self.rank1.buffers(), strict=True):
            if a.is_floating_point():
                mean = (a + b) / 2
                a.copy_(mean)
                b.copy_(mean)

    def apart(self, what: str) -> float:
        both = zip(getattr(self.rank0, what)(), getattr(self.rank1, what)(), strict=True)
        return sum(float((a.detach().float() - b.detach().float()).norm()) for a, b in both)


@program(steps=150, bites="parameters")
def two_copies(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two copies in step: gradients and buffers averaged after every backward, one Adam for each."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    copies = Copies(same_start=fault != "copies_seeded_apart")
    adams = [torch.optim.Adam(rank.parameters(), lr=5e-3) for rank in (copies.rank0, copies.rank1)]
    losses = [0.0]
    for step in range(steps):
        x, y = circles(96, generator)
        if fault == "copies_keep_their_statistics":  # the shards are by sensor, and one sensor is off
            x[48:] += 1.0
        for adam in adams:
            adam.zero_grad()
        halves = zip((copies.rank0, copies.rank1), x.chunk(2), y.chunk(2), strict=True)
        parts = [nn.functional.cross_entropy(rank(a), b) for rank, a, b in halves]
        loss = torch.stack(parts).mean()
        loss.backward()
        copies.average_gradients(skip="3.weight" if fault == "copies_one_tensor_skipped" and step >= 50 else "")
        for adam in adams:
            adam.step()
        if fault != "copies_keep_their_statistics":
            copies.average_buffers()
        losses = [*losses[-9:], loss.item()]
    return {
        "loss": sum(losses) / len(losses), "parameters": copies.apart("parameters"), "buffers": copies.apart("buffers"),
    }  # fmt: skip


two_copies.mistake(
    "copies_one_tensor_skipped",
    "DST001", "WGT006",
    summary="From step 50 on one weight is left out of the averaging: the copies part.",
    change="average all",
    layers=("rank0.3", "rank1.3"),
    onset=50,
    silent=True,
)  # fmt: skip
two_copies.mistake(
    "copies_keep_their_statistics",
    "DST001",
    summary="The running statistics of the norms are not averaged, and the shards differ.",
    change="average the buffers",
    layers=("rank0.1", "rank0.4", "rank1.1", "rank1.4"),
    bites="buffers",
    silent=True,
)
two_copies.mistake(
    "copies_seeded_apart",
    "DST001",
    summary="Every copy is seeded with its rank: they start from different weights and average foreign gradients.",
    change="broadcast the weights at the start",
    silent=True,
)
