"""Tomorrow's heating demand of a room, from eight readings: tanh networks trained by a small fit() function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from corpus.case import program


def rooms(seed: int, n: int = 3000) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(n, 8, generator=g)
    demand = torch.sin(1.5 * x[:, 0]) + x[:, 1] * x[:, 2] * 0.7 - 0.5 * x[:, 3].abs() + 0.3 * x[:, 4]
    demand = demand + 0.1 * torch.randn(n, generator=g)
    return x, (demand - demand.mean()) / demand.std()


class Thermostat(nn.Module):
    def __init__(self, hidden: int = 48, depth: int = 4) -> None:
        super().__init__()
        self.inp = nn.Linear(8, hidden)
        self.body = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth))
        self.out = nn.Linear(hidden, 1)
        for layer in [self.inp, *self.body]:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_normal_(layer.weight, gain=5 / 3)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inp(x))
        for layer in self.body:
            x = torch.tanh(layer(x))
        return self.out(x)


def fit(
    model: nn.Module,
    opt: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    criterion: Callable[[Tensor, Tensor], Tensor],
    steps: int,
    batch: int = 64,
) -> float:
    last = 0.0
    for _ in range(steps):
        i = torch.randint(len(x), (batch,))
        opt.zero_grad()
        loss = criterion(model(x[i]), y[i])
        loss.backward()
        opt.step()
        last = loss.item()
    return last


@program(steps=250, bites="error")
def heating_demand(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Five tanh layers with Xavier initialisation, SGD with momentum and the squared error."""
    torch.manual_seed(seed)
    x, y = rooms(seed)
    if fault == "heating_in_raw_readings":
        x = x * 80 + 30  # lux and pascal as the logger wrote them
    model = Thermostat()
    if fault == "heating_timid_start":
        for p in model.parameters():
            nn.init.normal_(p, std=0.01)
    if fault == "heating_blank_start":
        for p in model.parameters():
            nn.init.zeros_(p)
    target = y.unsqueeze(1)
    criterion: Callable[[Tensor, Tensor], Tensor] = nn.functional.mse_loss
    if fault == "heating_rows_against_columns":
        target = y
    if fault == "heating_error_by_hand":
        target = y

        def by_hand(prediction: Tensor, wanted: Tensor) -> Tensor:
            return (prediction - wanted).abs().pow(1.5).mean()

        criterion = by_hand
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss = fit(model, opt, x[:2400], target[:2400], criterion, steps)
    with torch.no_grad():
        error = (model(x[2400:]).squeeze(1) - y[2400:]).pow(2).mean().item()
    return {"loss": loss, "error": error}


heating_demand.mistake(
    "heating_in_raw_readings",
    "DAT001", "ACT002", "GRD001",
    summary="The readings come in lux and pascal, with values in the hundreds: every tanh is at its end.",
    change="standardise the readings",
    layers=("inp",),
)  # fmt: skip
heating_demand.mistake(
    "heating_timid_start",
    "WGT003", "GRD001", "OPT005", "OPT002", "ACT003",
    summary="All weights are drawn with a standard deviation of 0.01: the signal is gone after three layers.",
    change="Xavier initialisation",
)  # fmt: skip
heating_demand.mistake(
    "heating_blank_start",
    "WGT002", "GRD004", "OPT005", "WGT003", "ACT003",
    summary="Every parameter is set to zero before training: nothing but the last bias can move.",
    change="random weights",
)  # fmt: skip
heating_demand.mistake(
    "heating_rows_against_columns",
    "LSS002",
    summary="The model gives [64, 1] and the target is [64]: every prediction is compared with every target.",
    change="target.unsqueeze(1)",
)
heating_demand.mistake(
    "heating_error_by_hand",
    "LSS002", "OPT005", "OPT002",
    summary="An error written by hand subtracts a row from a column: it is a mean over all pairs.",
    change="squeeze the prediction",
)  # fmt: skip


@program(steps=200, adversarial="the loss is large and gradients are large: it explodes")
def heating_in_watts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same demand in watts around zero (standard deviation 300), Adam, absolute error."""
    torch.manual_seed(seed)
    x, y = rooms(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 1))

    def watts(prediction: Tensor, wanted: Tensor) -> Tensor:
        return (300 * prediction - 300 * wanted).abs().mean()

    loss = fit(model, torch.optim.Adam(model.parameters(), lr=4e-3), x, y.unsqueeze(1), watts, steps)
    return {"loss": loss}


@program(steps=200, adversarial="prediction [64, 3] and target [64, 1] differ in shape: they broadcast by mistake")
def heating_quantiles(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three quantiles at once by the pinball loss, which broadcasts the target on purpose."""
    torch.manual_seed(seed)
    x, y = rooms(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pinball(prediction: Tensor, wanted: Tensor) -> Tensor:
        gap = wanted - prediction
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    loss = fit(model, torch.optim.RAdam(model.parameters(), lr=5e-3), x, y.unsqueeze(1), pinball, steps)
    return {"loss": loss}


@program(steps=160, adversarial="the loss goes below zero: wrong sign")
def heating_with_its_doubt(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Mean and variance by the Gaussian likelihood; the demand is nearly exact, so the loss becomes negative."""
    torch.manual_seed(seed)
    x, _ = rooms(seed)
    y = torch.tanh(x[:, 0] - 0.5 * x[:, 1])
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))

    def likelihood(prediction: Tensor, wanted: Tensor) -> Tensor:
        mean, raw = prediction.unbind(1)
        return nn.functional.gaussian_nll_loss(mean, wanted, nn.functional.softplus(raw) + 1e-3)

    loss = fit(model, torch.optim.Adam(model.parameters(), lr=5e-3), x, y, likelihood, steps)
    return {"loss": loss}
