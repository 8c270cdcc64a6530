"""A greenhouse remembers what was sown: what the first readings say decides the harvest forty readings later."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

READINGS, LENGTH = 3, 24


def season(batch: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Only the first two readings matter; the rest is weather."""
    x = torch.randn(batch, LENGTH, READINGS, generator=g) * 0.3
    sown = torch.randn(batch, 2, generator=g)
    x[:, 0, 0] = sown[:, 0]
    x[:, 1, 1] = sown[:, 1]
    return x, (sown[:, 0] - 0.5 * sown[:, 1]).tanh()


class Soil(nn.Module):
    """The state moves by one matrix from reading to reading."""

    def __init__(self, size: int, kind: str) -> None:
        super().__init__()
        if kind == "greenhouse_starts_empty":
            moves, takes = torch.zeros(size, size), torch.zeros(READINGS, size)
        else:
            moves = torch.linalg.qr(torch.randn(size, size))[0]
            takes = torch.randn(READINGS, size) * 0.5
        if kind == "greenhouse_dries_out":
            moves = 0.35 * moves
        if kind == "greenhouse_overgrows":
            moves = torch.randn(size, size) * 0.5
        self.moves = nn.Parameter(moves)
        self.takes = nn.Parameter(takes)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), self.moves.shape[0])
        for t in range(x.shape[1]):
            state = state @ self.moves + x[:, t] @ self.takes
        return state


class Greenhouse(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.soil = Soil(24, kind)
        self.harvest = nn.Linear(24, 1)
        if kind == "greenhouse_starts_empty":
            nn.init.zeros_(self.harvest.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.harvest(self.soil(x)).squeeze(1)


@program(steps=150, bites="error")
def greenhouse(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A linear recurrence that starts as a rotation, so that nothing of the seed is lost on the way."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Greenhouse(fault)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, y = season(64, g)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, y = season(500, g)
    with torch.no_grad():
        error = nn.functional.mse_loss(model(x), y)
    return {"loss": _finite(loss), "error": _finite(error)}


def _finite(value: Tensor) -> float:
    return min(value.item(), 1e9) if value.isfinite() else 1e9


greenhouse.mistake(
    "greenhouse_overgrows",
    "GRD002", "WGT003", "NUM002", "NUM001", "NUM003", "NUM004", "OPT001",
    summary="The matrix that moves the state multiplies it by more than two at every reading.",
    change="an orthogonal start",
    layers=("soil", "soil.moves"),
)  # fmt: skip
greenhouse.mistake(
    "greenhouse_dries_out",
    "GRD001",
    "WGT003",
    summary="The state shrinks to a third at every reading: what was sown first is forgotten, and so is its gradient.",
    change="an orthogonal start",
    layers=("soil", "soil.moves"),
)
greenhouse.mistake(
    "greenhouse_starts_empty",
    "WGT002",
    "GRD004",
    "OPT005",
    summary="All matrices start as zeros: the state is zero for ever, only the last bias learns.",
    change="random matrices",
    layers=("soil", "harvest"),
)


@program(steps=150, bites="error", adversarial="a graph that is cut between steps is a mistake")
def greenhouse_in_pieces(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A running mean over one endless series; the state goes on to the next piece, its gradient does not."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    cell, read = nn.GRU(2, 24, batch_first=True), nn.Linear(24, 1)
    optimizer = torch.optim.Adam([*cell.parameters(), *read.parameters()], lr=5e-3)
    state, level = torch.zeros(1, 32, 24), torch.zeros(32, 1)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = torch.randn(32, 12, 2, generator=g)
        targets = []
        for t in range(12):
            level = 0.8 * level + 0.4 * x[:, t, :1]
            targets.append(level)
        out, state = cell(x, state.detach())
        loss = nn.functional.mse_loss(read(out), torch.stack(targets, dim=1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(cell.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item(), "error": loss.item()}


@program(steps=140, bites="error", adversarial="gates that are open all the time are saturated")
def greenhouse_keeps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An LSTM whose forget gate starts with a bias of four, as one does for long memories."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    lstm, read = nn.LSTM(READINGS, 24, batch_first=True), nn.Linear(24, 1)
    with torch.no_grad():
        lstm.get_parameter("bias_ih_l0")[24:48].fill_(4.0)
    optimizer = torch.optim.Adam([*lstm.parameters(), *read.parameters()], lr=8e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, y = season(64, g)
        loss = nn.functional.mse_loss(read(lstm(x)[0][:, -1]).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "error": loss.item()}
