"""How high will the water stand? Gauges of a harbour read by recurrent networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program


def gauge_readings(count: int, length: int, seed: int) -> Tensor:
    """Two tides of their own height and phase, a slow swell and some noise: (count, length, 1)."""
    rng = torch.Generator().manual_seed(seed)
    time = torch.arange(length)[None]
    phase = 6.28 * torch.rand(3, count, 1, generator=rng)
    height = 0.4 + torch.rand(3, count, 1, generator=rng)
    water = height[0] * (0.5 * time + phase[0]).sin() + 0.7 * height[1] * (0.23 * time + phase[1]).sin()
    water = water + 0.5 * height[2] * (0.05 * time + phase[2]).sin()
    return (water + 0.05 * torch.randn(count, length, generator=rng))[..., None]


class TideForecaster(nn.Module):
    def __init__(self, hidden: int = 32, frozen_reader: bool = False) -> None:
        super().__init__()
        self.reader = nn.LSTM(1, hidden, batch_first=True)
        self.forecast = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, 6))
        self.frozen_reader = frozen_reader

    def forward(self, x: Tensor) -> Tensor:
        if self.frozen_reader:
            with torch.no_grad():
                _, (h, _) = self.reader(x)
        else:
            _, (h, _) = self.reader(x)
        return self.forecast(h[-1])


@program(steps=300, bites="error")
def tide_table(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An LSTM reads 24 hours and forecasts six, by SGD with momentum and clipped gradients."""
    torch.manual_seed(seed)
    water = gauge_readings(2000, 30, seed)
    past, future = water[:, :24], water[:, 24:, 0]
    net = TideForecaster(frozen_reader=fault == "tide_reader_under_no_grad")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.9)
    bound = 1e-3 if fault == "tide_clipped_to_nothing" else 1.0
    late = 0.0
    for step in range(steps):
        if fault == "tide_resumed_hot" and step == 150:
            for group in optimizer.param_groups:  # the checkpoint was written on sixty-four cards
                group["lr"] *= 64
        rows = torch.randint(len(past), (48,))
        loss = fn.mse_loss(net(past[rows]), future[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), bound)
        optimizer.step()
        late += 0.1 * (loss.item() - late)
    test = gauge_readings(400, 30, seed + 31)
    with torch.no_grad():
        error = fn.mse_loss(net(test[:, :24]), test[:, 24:, 0]).item()
    return {"loss": late, "error": min(error, 1e6)}


tide_table.mistake(
    "tide_clipped_to_nothing",
    "GRD010", "UPD002", "OPT007",
    summary="Gradients are clipped to a norm of a thousandth: every step is cut a hundredfold and more.",
    change="clip_grad_norm_(…, 1.0)",
)  # fmt: skip
tide_table.mistake(
    "tide_reader_under_no_grad",
    "GRD003",
    summary="The LSTM runs under no_grad, a leftover of serving: only the layers behind it learn.",
    change="no no_grad in forward",
    layers=("reader",),
)
tide_table.mistake(
    "tide_resumed_hot",
    "OPT007", "UPD001", "OPT001",
    summary="Resumed at step 150 with the rate scaled by the number of cards of another machine.",
    change="the rate as it was",
    onset=150,
)  # fmt: skip


def harbour_signals(count: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """A flag of four colours in the first hour, then only noise: which flag was it?"""
    rng = torch.Generator().manual_seed(seed)
    flag = torch.randint(4, (count,), generator=rng)
    x = 0.1 * torch.randn(count, length, 4, generator=rng)
    x[torch.arange(count), 0, flag] += 1.0
    return x, flag


class SignalReader(nn.Module):
    def __init__(self, nonlinearity: str = "tanh") -> None:
        super().__init__()
        self.rnn = nn.RNN(4, 32, nonlinearity=nonlinearity, batch_first=True)
        self.label = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.label(self.rnn(x)[0][:, -1])


@program(steps=200, bites="accuracy")
def tide_flag_memory(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A plain recurrent network keeps the first of thirty inputs: orthogonal recurrence, Adam, clipping."""
    torch.manual_seed(seed)
    net = SignalReader("relu" if fault == "tide_recurrence_of_four" else "tanh")
    with torch.no_grad():
        nn.init.orthogonal_(net.rnn.weight_hh_l0)
        if fault == "tide_recurrence_forgets":
            net.rnn.weight_hh_l0.normal_(std=0.03)
        elif fault == "tide_recurrence_of_four":
            net.rnn.weight_hh_l0.mul_(4.0)
    x, y = harbour_signals(2000, 30, seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(len(x), (48,))
        loss = fn.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        if fault != "tide_recurrence_of_four":
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    test_x, test_y = harbour_signals(400, 30, seed + 31)
    with torch.no_grad():
        accuracy = (net(test_x).argmax(1) == test_y).float().mean().item()
    return {"loss": loss.item(), "accuracy": accuracy}


tide_flag_memory.mistake(
    "tide_recurrence_forgets",
    "GRD001", "WGT003",
    summary="The recurrent matrix is drawn far too small: thirty hours back no gradient is left.",
    change="nn.init.orthogonal_",
    layers=("rnn",),
)  # fmt: skip
tide_flag_memory.mistake(
    "tide_recurrence_of_four",
    "GRD002", "WGT003", "NUM001",
    summary="ReLU with a recurrent matrix four times orthogonal and no clipping: values grow fourfold an hour.",
    change="orthogonal recurrence and tanh",
    layers=("rnn",),
    bites="loss",
)  # fmt: skip


@healthy(steps=240, architecture="lstm", adversarial="a detached state cuts the graph")
def tide_along_the_year(steps: int, seed: int) -> dict[str, float]:
    """Sixteen gauges read in pieces of twenty hours; the state is carried over, and detached on purpose."""
    torch.manual_seed(seed)
    water = gauge_readings(16, 20 * 60 + 1, seed)
    lstm, out = nn.LSTM(1, 24, batch_first=True), nn.Linear(24, 1)
    optimizer = torch.optim.RMSprop([*lstm.parameters(), *out.parameters()], lr=2e-3)
    state: tuple[Tensor, Tensor] | None = None
    loss = torch.zeros(())
    for step in range(steps):
        start = 20 * (step % 60)
        if start == 0:
            state = None
        h, state = lstm(water[:, start : start + 20], state)
        state = (state[0].detach(), state[1].detach())
        loss = fn.mse_loss(out(h), water[:, start + 1 : start + 21])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=360, architecture="gru", adversarial="a loss that rests for a hundred steps will never fall")
def tide_adding_locks(steps: int, seed: int) -> dict[str, float]:
    """The adding problem: the GRU first answers the mean, for long, and then finds out what the marks are for."""
    torch.manual_seed(seed)
    gru, out = nn.GRU(2, 32, batch_first=True), nn.Linear(32, 1)
    optimizer = torch.optim.Adam([*gru.parameters(), *out.parameters()], lr=5e-3)
    late = 0.0
    for _ in range(steps):
        value = torch.rand(48, 16)
        marks = torch.zeros(48, 16)
        marks[torch.arange(48), torch.randint(8, (48,))] = 1.0
        marks[torch.arange(48), 8 + torch.randint(8, (48,))] = 1.0
        guess = out(gru(torch.stack([value, marks], 2))[0][:, -1]).squeeze(1)
        loss = fn.mse_loss(guess, (value * marks).sum(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*gru.parameters(), *out.parameters()], 1.0)
        optimizer.step()
        late += 0.1 * (loss.item() - late)
    return {"loss": late}


@healthy(steps=240, architecture="lstm", adversarial="a loss that jumps up is a spike")
def tide_longer_and_longer(steps: int, seed: int) -> dict[str, float]:
    """A curriculum: every eighty steps the network must see further ahead, and the loss jumps on purpose."""
    torch.manual_seed(seed)
    water = gauge_readings(2000, 30, seed)
    past, future = water[:, :24], water[:, 24:, 0]
    net = TideForecaster()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    late = 0.0
    for step in range(steps):
        ahead = (1, 3, 6)[min(2, 3 * step // steps)]
        rows = torch.randint(len(past), (48,))
        loss = fn.mse_loss(net(past[rows])[:, :ahead], future[rows, :ahead])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        late += 0.1 * (loss.item() - late)
    return {"loss": late}
