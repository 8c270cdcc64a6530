"""Buoys at sea: what state is the sea in, and how high will the next waves be? Data taken from files as they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corpus.case import program

STATES, READINGS = 4, 20


@dataclass
class Log:
    readings: Tensor
    state: Tensor

    def split(self, at: int) -> tuple[Log, Log]:
        return Log(self.readings[:at], self.state[:at]), Log(self.readings[at:], self.state[at:])


def sea_log(seed: int, count: int = 1600) -> Log:
    """Twenty readings per hour; the state is a bent function of a few of them."""
    rng = torch.Generator().manual_seed(42_000 + seed)
    z = torch.randn(count, READINGS, generator=rng)
    swell = z[:, 0] + 0.8 * z[:, 1] + 0.7 * torch.sin(2 * z[:, 2]) + 0.4 * z[:, 3] * z[:, 4]
    edges = torch.quantile(swell, torch.linspace(0, 1, STATES + 1)[1:-1])
    return Log(z, torch.bucketize(swell, edges))


class SeaState(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.gauge = nn.Linear(READINGS, width)
        self.deck = nn.Linear(width, width)
        self.watch = nn.Linear(width, STATES)

    def forward(self, x: Tensor) -> Tensor:
        return self.watch(torch.relu(self.deck(torch.relu(self.gauge(x)))))


def right(model: nn.Module, log: Log) -> float:
    with torch.no_grad():
        return (model(log.readings).argmax(1) == log.state).float().mean().item()


@program(steps=200, bites="accuracy")
def buoy_states(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two hidden layers, SGD with momentum, rows in a new order for every epoch."""
    torch.manual_seed(seed)
    train, test = sea_log(seed).split(1300)
    if fault == "buoy_in_hectopascal":
        offset, unit = torch.tensor(1013.0), 15.0
        train.readings, test.readings = train.readings * unit + offset, test.readings * unit + offset
    if fault == "buoy_sorted_readings_only":
        train.state = train.state[train.readings[:, 7].argsort()]  # the join kept the order of one side
    if fault == "buoy_half_of_the_join":
        part = torch.rand(len(train.state)) < 0.55
        train.state = torch.where(part, train.state.roll(1), train.state)
    model = SeaState()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order, loss = torch.arange(0), torch.tensor(0.0)
    for step in range(steps):
        if len(order) < 50:
            order = torch.randperm(len(train.state))
            if fault == "buoy_calm_to_storm":
                order = train.state.argsort(stable=True)
        rows, order = order[:50], order[50:]
        x = train.readings[rows]
        if fault == "buoy_sentinel_values" and step in {120, 121}:
            x = torch.where(torch.rand_like(x) < 0.3, torch.full_like(x, 999.0), x)  # "no reading"
        loss = nn.functional.cross_entropy(model(x), train.state[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": min(loss.item(), 1e6) if loss.isfinite() else 1e6, "accuracy": right(model, test)}


buoy_states.mistake(
    "buoy_in_hectopascal",
    "DAT001",
    summary="Pressures around a thousand with a spread of fifteen go into the net as they are.",
    change="standardise the readings",
)
buoy_states.mistake(
    "buoy_sorted_readings_only",
    "DAT004",
    summary="A join sorts the answers by a column and leaves the readings as they were: the labels are by chance.",
    change="join by the key",
)
buoy_states.mistake(
    "buoy_half_of_the_join",
    "DAT004",
    summary="Every second answer is that of the row before: half of the labels are by chance.",
    change="join by the key",
)
buoy_states.mistake(
    "buoy_calm_to_storm",
    "DAT005",
    summary="The epoch goes from calm to storm: batches hold one state each.",
    change="shuffle",
)
buoy_states.mistake(
    "buoy_sentinel_values",
    "DAT002", "OPT003", "GRD006", "DAT001",
    summary="Two batches carry the sentinel 999 for missing readings; the net does not come back from it.",
    change="fill missing readings",
    onset=120,
)  # fmt: skip


def wave_trains(seed: int, count: int, hours: int = 25) -> Tensor:
    rng = torch.Generator().manual_seed(43_000 + seed)
    pace = 0.3 + 0.5 * torch.rand(count, 1, generator=rng)
    phase = 6.28 * torch.rand(count, 1, generator=rng)
    hour = torch.arange(hours).float()
    height = torch.sin(pace * hour + phase) + 0.5 * torch.sin(2.1 * pace * hour)
    return height + 0.1 * torch.randn(count, hours, generator=rng)


class WaveReader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(1, 32, batch_first=True)
        self.height = nn.Linear(32, 1)

    def forward(self, series: Tensor) -> Tensor:
        states, _ = self.memory(series[..., None])
        return self.height(states).squeeze(-1)


@program(steps=150, bites="loss")
def buoy_next_wave(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GRU foretells the next height; errors are summed over the hours and the gradient clipped."""
    torch.manual_seed(seed)
    series = wave_trains(seed, 1000)
    model = WaveReader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        rows = torch.randint(900, (32,))
        heights = series[rows]
        loss = (model(heights[:, :-1]) - heights[:, 1:]).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        if fault != "buoy_clip_below_the_step":
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        if fault == "buoy_clip_below_the_step":
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    with torch.no_grad():
        late = series[900:]
        error = (model(late[:, :-1]) - late[:, 1:]).square().mean().item()
    return {"loss": error if error < 100 else 100.0}


buoy_next_wave.mistake(
    "buoy_clip_below_the_step",
    "UPD001", "OPT007", "OPT001", "GRD002", "NUM002", "NUM001", "NUM003", "OPT004", "OPT003", "GRD006",
    summary="Gradients are clipped after the step, where it has no effect: the steps are far too large.",
    change="clip before the step",
)  # fmt: skip


@program(steps=200, adversarial="the loss is tiny and gradients vanish: it has learned a few hours by heart, as meant")
def buoy_by_heart(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Forty hours learned until nothing is left to learn: the usual test of a new net."""
    torch.manual_seed(seed)
    log, _ = sea_log(500 + seed).split(40)
    model = SeaState(96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(log.readings), log.state)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": right(model, log)}


@program(steps=200, adversarial="batches of few classes are unshuffled: each batch is made of three states on purpose")
def buoy_three_states_at_a_time(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Each batch compares three states that are drawn anew, and only these."""
    torch.manual_seed(seed)
    train, test = sea_log(600 + seed).split(1300)
    where = [(train.state == s).nonzero().squeeze(1) for s in range(STATES)]
    model = SeaState()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        picked = torch.randperm(STATES)[:3].tolist()
        rows = torch.cat([where[s][torch.randint(len(where[s]), (24,))] for s in picked])
        scores = model(train.readings[rows])[:, picked]
        answer = torch.arange(3).repeat_interleave(24)
        loss = nn.functional.cross_entropy(scores, answer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": right(model, test)}


@program(steps=200, adversarial="inputs of a large scale are raw: the first layer is a BatchNorm that takes care of it")
def buoy_normed_at_the_door(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Readings in their own units, with a BatchNorm without gains as the first layer."""
    torch.manual_seed(seed)
    train, test = sea_log(700 + seed).split(1300)
    unit = torch.logspace(0, 3, READINGS)
    train.readings, test.readings = train.readings * unit + 10, test.readings * unit + 10
    model = nn.Sequential(nn.BatchNorm1d(READINGS, affine=False), SeaState())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1300, (64,))
        loss = nn.functional.cross_entropy(model(train.readings[rows]), train.state[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    return {"loss": loss.item(), "accuracy": right(model, test)}


@program(steps=200)
def buoy_one_in_ten_wrong(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One label in ten is a neighbour's guess, as in every real log; the net learns all the same."""
    torch.manual_seed(seed)
    train, test = sea_log(800 + seed).split(1300)
    guess = torch.rand(1300) < 0.1
    train.state = torch.where(guess, (train.state + 1).clamp(max=STATES - 1), train.state)
    model = SeaState()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8, weight_decay=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1300, (64,))
        loss = nn.functional.cross_entropy(model(train.readings[rows]), train.state[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": right(model, test)}
