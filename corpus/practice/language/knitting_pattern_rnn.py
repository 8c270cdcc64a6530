"""Knitting patterns as sequences of stitches: what follows, and with which stitch the work was cast on."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn, optim

from corpus.case import program

STITCHES = 8
MOTIFS = [[0, 1, 2, 1], [3, 3, 4, 5, 4], [6, 7, 0], [2, 5, 7, 5, 2, 1], [4, 0, 4, 6], [1, 6, 3]]


def rows(generator: torch.Generator, count: int, length: int, slip: float = 1 / 12) -> tuple[Tensor, Tensor]:
    """Rows that repeat one motif from anywhere in it, some stitches dropped for another."""
    motif = torch.randint(len(MOTIFS), (count,), generator=generator)
    start = torch.randint(6, (count,), generator=generator)
    knitted = torch.tensor(
        [[MOTIFS[m][(s + t) % len(MOTIFS[m])] for t in range(length)] for m, s in zip(motif.tolist(), start.tolist())]
    )
    slips = torch.rand(count, length, generator=generator) < slip
    return torch.where(slips, torch.randint(STITCHES, knitted.shape, generator=generator), knitted), motif


def cast_on(generator: torch.Generator, count: int, length: int) -> tuple[Tensor, Tensor]:
    """The first stitch counts, faint noise follows."""
    first = torch.randint(STITCHES, (count,), generator=generator)
    seen = 0.05 * torch.randn(count, length, STITCHES, generator=generator)
    seen[:, 0] += nn.functional.one_hot(first, STITCHES)
    return seen, first


def finite(value: float) -> float:
    return min(value, 1e6) if math.isfinite(value) else 1e6


class MotifReader(nn.Module):
    """A rectified recurrence that begins as the identity."""

    def __init__(self, hidden: int = 48) -> None:
        super().__init__()
        self.stitches = nn.Embedding(STITCHES, 16)
        self.rnn = nn.RNN(16, hidden, nonlinearity="relu", batch_first=True)
        self.motif = nn.Linear(hidden, len(MOTIFS))
        self.rnn.weight_hh_l0 = nn.Parameter(0.8 * torch.eye(hidden))

    def forward(self, row: Tensor) -> Tensor:
        states, _ = self.rnn(self.stitches(row))
        return self.motif(states[:, -1])


@program(steps=150, bites="loss", adversarial="a recurrence of rectified units explodes")
def knit_motifs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Which motif is this? A rectified recurrence over 24 stitches, half of them wrong, Adam, gradients clipped."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = MotifReader()
    if fault == "knit_memory_times_four":
        net.rnn.weight_hh_l0 = nn.Parameter(4 * torch.empty(48, 48).uniform_(-1, 1) / math.sqrt(48))
    adam = optim.Adam(net.parameters(), lr=1e-3)
    losses: list[float] = []
    for _ in range(steps):
        row, motif = rows(g, 32, 24, slip=0.5)
        loss = nn.functional.cross_entropy(net(row), motif)
        adam.zero_grad()
        loss.backward()
        if fault != "knit_memory_times_four":
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        losses.append(loss.item())
    return {"loss": finite(sum(losses[-10:]) / 10)}


knit_motifs.mistake(
    "knit_memory_times_four",
    "GRD002", "WGT003", "NUM001", "NUM002", "NUM004", "NUM003", "OPT001",
    summary="The rectified recurrence is drawn four times too wide and nothing is clipped: it grows with every stitch.",
    change="begin with the identity, clip the gradients",
    layers=("rnn",),
)  # fmt: skip


@program(steps=160, bites="accuracy")
def knit_cast_on(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Recall the stitch with which the work was cast on, forty stitches later: tanh, orthogonal recurrence."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(100 + seed)
    memory = nn.RNN(STITCHES, 40, batch_first=True)
    net = nn.ModuleDict({"memory": memory, "answer": nn.Linear(40, STITCHES)})
    scale = 0.3 if fault == "knit_memory_fades" else 1.0
    memory.weight_hh_l0 = nn.Parameter(scale * nn.init.orthogonal_(torch.empty(40, 40)))
    adam = optim.Adam(net.parameters(), lr=1.5e-3)
    length, accuracy, loss = 40, 0.0, torch.zeros(())
    for step in range(steps):
        seen, first = cast_on(g, 64, length)
        states, _ = memory(seen)
        logits = net["answer"](states[:, -1])
        loss = nn.functional.cross_entropy(logits, first)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step >= steps - 10:
            accuracy += (logits.argmax(1) == first).float().mean().item() / 10
    return {"loss": loss.item(), "accuracy": accuracy}


knit_cast_on.mistake(
    "knit_memory_fades",
    "GRD001",
    "WGT003",
    summary="The recurrent weights start at a third: after forty stitches no trace of the first is left.",
    change="orthogonal recurrent weights, or a gated cell",
    layers=("memory",),
)


class NextStitch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(STITCHES, 24)
        self.lstm = nn.LSTM(24, 48, num_layers=2, batch_first=True)
        self.next = nn.Linear(48, STITCHES)

    def forward(self, row: Tensor) -> Tensor:
        return self.next(self.lstm(self.table(row))[0])


@program(steps=160)
def knit_next_stitch(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A two-layer LSTM that names the next stitch; rows get longer in a second phase of the training."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(200 + seed)
    net = NextStitch()
    adam = optim.Adam(net.parameters(), lr=4e-3)
    recent: list[float] = []

    def short_rows() -> float:
        row, _ = rows(g, 32, 13)
        adam.zero_grad()
        loss = nn.functional.cross_entropy(net(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten())
        loss.backward()
        adam.step()
        return loss.item()

    def long_rows() -> float:
        row, _ = rows(g, 32, 21)
        if fault != "knit_second_phase_piles_up":
            adam.zero_grad()
        loss = nn.functional.cross_entropy(net(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten())
        loss.backward()
        adam.step()
        return loss.item()

    for step in range(steps):
        recent.append(short_rows() if step < 60 else long_rows())
    return {"loss": finite(sum(recent[-10:]) / 10)}


knit_next_stitch.mistake(
    "knit_second_phase_piles_up",
    "GRD007",
    summary="The function for the second phase was written anew, without zero_grad(): gradients add up from then on.",
    change="call zero_grad() in both phases",
    onset=60,
)


@program(steps=150)
def knit_both_ways(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A bidirectional GRU that finds the dropped stitches; few of them, so their loss weighs more."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(300 + seed)
    table, gru, mark = (
        nn.Embedding(STITCHES, 16),
        nn.GRU(16, 32, batch_first=True, bidirectional=True),
        nn.Linear(64, 1),
    )
    net = nn.ModuleList([table, gru, mark])
    adam = optim.NAdam(net.parameters(), lr=4e-3)
    weight, loss = torch.tensor(4.0), torch.zeros(())
    recent: list[float] = []
    for _ in range(steps):
        clean = torch.tensor(
            [[MOTIFS[int(m)][t % len(MOTIFS[int(m)])] for t in range(24)] for m in torch.randint(6, (32,), generator=g)]
        )
        dropped = torch.rand(clean.shape, generator=g) < 0.1
        row = torch.where(dropped, (clean + torch.randint(1, STITCHES, clean.shape, generator=g)) % STITCHES, clean)
        scores = mark(gru(table(row))[0]).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, dropped.float(), pos_weight=weight)
        adam.zero_grad()
        loss.backward()
        adam.step()
        recent.append(loss.item())
    return {"loss": sum(recent[-10:]) / 10}
