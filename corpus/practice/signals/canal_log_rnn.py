"""The keeper of a canal lock: plain recurrent nets over logs of sluices and ships."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from corpus.case import program


def sluice_log(gen: torch.Generator, batch: int, hours: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Inflow and the position of the gate in every hour; the water level is a leaky sum."""
    inflow = torch.rand(batch, hours, generator=gen)
    gate = (torch.rand(batch, hours, generator=gen) < 0.4).float()
    level = torch.zeros(batch)
    for hour in range(hours):
        level = 0.95 * level + gate[:, hour] * (inflow[:, hour] - 0.4)
    return torch.stack([inflow - 0.5, gate - 0.4], 2), level


class Gauge(nn.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, hidden, nonlinearity="relu", batch_first=True)
        self.level = nn.Linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.level(self.rnn(x)[0][:, -1]).squeeze(1)


@program(steps=180)
def lock_level(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The water level after a day, by a ReLU recurrence that starts near the identity."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    model = Gauge()
    start = dict(model.rnn.named_parameters())
    with torch.no_grad():
        nn.init.eye_(start["weight_hh_l0"]).mul_(0.85)
        nn.init.normal_(start["weight_ih_l0"], 0, 0.1)
        start["bias_ih_l0"].zero_()
        start["bias_hh_l0"].zero_()
        if fault == "lock_recurrence_far_too_strong":
            start["weight_hh_l0"].mul_(4)
        if fault == "lock_recurrence_somewhat_strong":
            nn.init.orthogonal_(start["weight_hh_l0"], gain=2.6)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    tail: list[float] = []
    for _ in range(steps):
        x, level = sluice_log(gen, 48)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), level)
        loss.backward()
        optimizer.step()
        tail = [*tail[-9:], loss.item()]
    mean = sum(tail) / len(tail)
    return {"loss": min(mean, 10.0) if mean == mean else 10.0}


lock_level.mistake(
    "lock_recurrence_far_too_strong",
    "GRD002", "WGT003", "OPT001", "NUM001", "NUM002", "NUM003", "NUM004",
    summary="The recurrent matrix starts at 3.4 times the identity: over 24 hours the state grows without bound.",
    change="start the recurrence near the identity",
    layers=("rnn",),
)  # fmt: skip
lock_level.mistake(
    "lock_recurrence_somewhat_strong",
    "GRD002", "WGT003", "OPT001", "NUM001", "NUM002", "NUM003", "NUM004",
    summary="An orthogonal start with a gain of 2.6, the gain of another activation.",
    change="a gain of one",
    layers=("rnn",),
)  # fmt: skip


class FirstShip(nn.Module):
    """Says at the end of the day which flag the first ship flew."""

    def __init__(self, flags: int = 5, hidden: int = 40) -> None:
        super().__init__()
        self.flag = nn.Embedding(flags + 3, 12)
        self.memory = nn.RNN(12, hidden, batch_first=True)
        self.answer = nn.Linear(hidden, flags)

    def forward(self, ships: torch.Tensor) -> torch.Tensor:
        states, _ = self.memory(self.flag(ships))
        return self.answer(states[:, -1])


@program(steps=170, bites="accuracy")
def lock_first_ship(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Remember the first ship for fourteen hours: an orthogonal tanh recurrence under AdamW."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    model = FirstShip()
    recurrence = dict(model.memory.named_parameters())["weight_hh_l0"]
    nn.init.orthogonal_(recurrence)
    with torch.no_grad():
        recurrence.mul_({"lock_memory_fades": 0.3, "lock_memory_fades_slowly": 0.6}.get(fault, 1.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    hits: list[float] = []
    losses: list[float] = []
    for step in range(steps):
        first = torch.randint(5, (64,), generator=gen)
        ships = torch.randint(5, 8, (64, 14), generator=gen)
        ships[:, 0] = first
        if fault != "lock_never_cleared" and not (fault == "lock_clears_until_noon" and step >= 60):
            optimizer.zero_grad()
        scores = model(ships)
        loss = functional.cross_entropy(scores, first)
        loss.backward()
        optimizer.step()
        hits.append((scores.argmax(1) == first).float().mean().item())
        losses.append(loss.item())
    left = sum(p.grad.norm().item() ** 2 for p in model.parameters() if p.grad is not None) ** 0.5
    return {
        "loss": sum(losses[-20:]) / len(losses[-20:]), "accuracy": sum(hits[-20:]) / len(hits[-20:]), "left": left,
    }  # fmt: skip


lock_first_ship.mistake(
    "lock_memory_fades",
    "GRD001", "WGT003",
    summary="The recurrent matrix starts at 0.3 of what it should be: after a few hours nothing is left of the ship.",
    change="an orthogonal start",
    layers=("memory",),
)  # fmt: skip
lock_first_ship.mistake(
    "lock_memory_fades_slowly",
    "GRD001", "WGT003",
    summary="The recurrent matrix starts at 0.6 of what it should be: little of the first ship reaches the evening.",
    change="an orthogonal start",
    layers=("memory",),
)  # fmt: skip
lock_first_ship.mistake(
    "lock_never_cleared",
    "GRD007",
    summary="zero_grad was lost when the loop was cleaned up: every gradient is added to all before it.",
    change="call zero_grad before backward",
)
lock_first_ship.mistake(
    "lock_clears_until_noon",
    "GRD007",
    summary="The second phase begins after sixty steps; its copy of the loop never clears the gradients.",
    change="call zero_grad in the second phase too",
    bites="left",
    onset=60,
)


@program(steps=160, bites="loss", adversarial="gradients far back in time vanish: a gated net that shall forget")
def lock_last_hour(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The answer depends on the last two ships alone; the GRU learns to forget the rest."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    model = nn.ModuleDict(
        {"flag": nn.Embedding(6, 10), "gru": nn.GRU(10, 24, batch_first=True), "out": nn.Linear(24, 6)}
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        ships = torch.randint(6, (48, 20), generator=gen)
        optimizer.zero_grad()
        states = model["gru"](model["flag"](ships))[0]
        loss = functional.cross_entropy(model["out"](states[:, -1]), (ships[:, -1] + ships[:, -2]) % 6)
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=160, bites="loss", adversarial="the state is detached between pieces: truncated on purpose")
def lock_all_year(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One year in pieces of twelve hours; the state goes on, its gradient does not."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    cell, out = nn.LSTM(1, 24, batch_first=True), nn.Linear(24, 1)
    model = nn.ModuleList([cell, out])
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    phase = torch.rand(16, 1, generator=gen) * 6.28
    state: tuple[torch.Tensor, torch.Tensor] | None = None
    loss = torch.zeros(())
    for piece in range(steps):
        hours = torch.arange(13.0)[None] + 12 * piece
        tide = torch.sin(hours * 0.51 + phase) + 0.4 * torch.sin(hours * 0.26 + 2 * phase)
        x, y = tide[:, :-1, None], tide[:, 1:, None]
        if state is not None:
            state = (state[0].detach(), state[1].detach())
        h, state = cell(x, state)
        loss = functional.mse_loss(out(h), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=150, bites="loss")
def lock_both_directions(steps: int, seed: int, fault: str) -> dict[str, float]:
    """At every hour: how much water has passed so far, and how much will? A bidirectional LSTM."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    model = nn.ModuleDict({"lstm": nn.LSTM(2, 20, batch_first=True, bidirectional=True), "out": nn.Linear(40, 2)})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = torch.zeros(())
    for _ in range(steps):
        x, _ = sluice_log(gen, 32, hours=16)
        flow = (x[..., 0] + 0.5) * (x[..., 1] + 0.4)
        so_far = flow.cumsum(1)
        both = torch.stack([so_far, so_far[:, -1:] - so_far], 2) / 3
        loss = functional.smooth_l1_loss(model["out"](model["lstm"](x)[0]), both)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    return {"loss": loss.item()}
