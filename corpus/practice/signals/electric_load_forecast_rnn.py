"""Tomorrow's load from the last day: a recurrent forecaster for a series with two seasons."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

WINDOW = 24


def load_curves(seed: int, count: int = 600) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(WINDOW + 1).float()
    start = 100 * torch.rand(count, 1, generator=generator)
    level = 0.5 * torch.randn(count, 1, generator=generator)
    curve = level + torch.sin((start + time) * 0.52) + 0.6 * torch.sin((start + time) * 1.9)
    curve = curve + 0.1 * torch.randn(count, WINDOW + 1, generator=generator)
    return curve[:, :-1, None], curve[:, -1]


class Forecaster(nn.Module):
    def __init__(self, hidden: int = 24, kind: type[nn.LSTM] | type[nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.rnn = kind(1, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.cut = False

    def forward(self, window: Tensor) -> Tensor:
        states, _ = self.rnn(window)
        last = states[:, -1]
        if self.cut:
            last = torch.from_numpy(last.detach().numpy())  # it was wanted for a plot once
        return self.head(last)


@program(steps=110, bites="relative_error")
def load_forecaster(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An LSTM that forecasts the next value, with Adam and clipping at one."""
    torch.manual_seed(seed)
    windows, future = load_curves(seed)
    if fault == "load_in_watts":
        future = 40_000 * future + 250_000
    model = Forecaster()
    model.cut = fault == "states_through_numpy"
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        rows = torch.randint(500, (48,))
        forecast = model(windows[rows])
        target = future[rows] if fault == "column_against_row" else future[rows].unsqueeze(1)
        loss = ((forecast - target) ** 2).mean()
        if fault != "gradients_of_yesterday":
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        error = (model(windows[500:]).squeeze(1) - future[500:]).pow(2).mean() / future[500:].var()
    return {"relative_error": error.item()}


load_forecaster.mistake(
    "gradients_of_yesterday",
    "GRD007",
    summary="Nobody clears the gradients between the steps.",
    change="call zero_grad()",
)
load_forecaster.mistake(
    "states_through_numpy",
    "GRD003",
    summary="The states go through numpy, so no gradient comes back to the LSTM.",
    change="pass the tensor on",
    layers=("rnn",),
)
load_forecaster.mistake(
    "load_in_watts",
    "DAT003", "OPT005", "OPT007", "GRD002",
    summary="The targets are in watts: their mean is 250,000.",
    change="standardise the targets",
)  # fmt: skip
load_forecaster.mistake(
    "column_against_row",
    "LSS002",
    summary="The forecast is a column and the target a row: the loss compares every pair.",
    change="give both the same shape",
)


@program(steps=100, bites="relative_error", adversarial="clipping on every step is over-clipping")
def load_tightly_clipped(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """A GRU under Adam whose gradients are clipped at 0.1 on most steps: Adam does not mind."""
    torch.manual_seed(seed)
    windows, future = load_curves(seed)
    model = Forecaster(kind=nn.GRU)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        rows = torch.randint(500, (48,))
        loss = nn.functional.mse_loss(model(windows[rows]).squeeze(1), future[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    with torch.no_grad():
        error = (model(windows[500:]).squeeze(1) - future[500:]).pow(2).mean() / future[500:].var()
    return {"relative_error": error.item()}


@program(steps=120, bites="relative_error", adversarial="a learning rate that goes up and down is a broken schedule")
def load_cyclic_rate(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """RMSprop under a triangular cyclic rate."""
    torch.manual_seed(seed)
    windows, future = load_curves(seed)
    model = Forecaster(kind=nn.GRU)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    cycle = torch.optim.lr_scheduler.CyclicLR(optimizer, 3e-4, 4e-3, step_size_up=15, cycle_momentum=False)
    for _ in range(steps):
        rows = torch.randint(500, (48,))
        loss = nn.functional.smooth_l1_loss(model(windows[rows]).squeeze(1), future[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
    with torch.no_grad():
        error = (model(windows[500:]).squeeze(1) - future[500:]).pow(2).mean() / future[500:].var()
    return {"relative_error": error.item()}


@program(steps=100, bites="relative_error", adversarial="a mean gradient below 1e-7 has vanished")
def load_in_gigawatts(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The loss is in squared gigawatts, a millionth of the usual; Adam with a small eps divides it out."""
    torch.manual_seed(seed)
    windows, future = load_curves(seed)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, eps=1e-16)
    for _ in range(steps):
        rows = torch.randint(500, (48,))
        loss = 1e-6 * nn.functional.mse_loss(model(windows[rows]).squeeze(1), future[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = (model(windows[500:]).squeeze(1) - future[500:]).pow(2).mean() / future[500:].var()
    return {"relative_error": error.item()}
