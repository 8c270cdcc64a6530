"""Soil moisture from weather and ground: a table, numbers to predict, and a script that grew over the years."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

COLUMNS = 12


def fields(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(7 * seed + 1)
    x = torch.randn(n, COLUMNS, generator=g)
    wet = torch.sin(1.5 * x[:, 0]) + x[:, 1] * x[:, 2] * 0.7 + (x[:, 3] > 0).float() * x[:, 4]
    y = wet + 0.1 * torch.randn(n, generator=g)
    return x, (y - y.mean()) / y.std()


class Standardise(nn.Module):
    """Every row of the hidden layer to mean zero and deviation one; columns nobody needs are switched off."""

    def __init__(self, width: int, guard: str) -> None:
        super().__init__()
        self.register_buffer("keep", (torch.arange(width) % 4 > 0).float())
        self.guard = guard

    def forward(self, h: Tensor) -> Tensor:
        h = h * self.get_buffer("keep")
        if self.guard == "none":
            return (h - h.mean(0)) / h.std(0)
        if self.guard == "after the root":
            return (h - h.mean(0)) / h.var(0).sqrt().clamp(min=1e-3)
        return (h - h.mean(0)) / (h.var(0) + 1e-5).sqrt()


class SoilNet(nn.Module):
    def __init__(self, width: int, guard: str) -> None:
        super().__init__()
        self.ground = nn.Linear(COLUMNS, width)
        self.even = Standardise(width, guard)
        self.weather = nn.Linear(width, width)
        self.moisture = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.even(nn.functional.leaky_relu(self.ground(x), 0.1))
        return self.moisture(torch.tanh(self.weather(h)))


@program(steps=200, bites="error")
def soil(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two layers with a standardisation between them, momentum, and a rate that falls twice."""
    torch.manual_seed(seed)
    x, y = fields(1500, seed)
    test_x, test_y = x[1200:], y[1200:]
    guard = {"soil_divided_by_nothing": "none", "soil_guarded_after_the_root": "after the root"}
    net = SoilNet(64, guard.get(fault, "under the root"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    milestones = torch.optim.lr_scheduler.MultiStepLR(optimizer, [120, 170], gamma=0.3)
    value = math.nan
    for step in range(steps):
        rows = torch.randint(1200, (64,))
        if fault == "soil_optimizer_in_the_loop":
            optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
        if fault == "soil_never_cleared":
            pass
        elif fault == "soil_cleared_while_warming_up":
            if step < 70:
                optimizer.zero_grad()
        else:
            optimizer.zero_grad()
        predicted = net(x[rows])
        if fault == "soil_column_against_row":
            loss = ((predicted - y[rows]) ** 2).mean()
        elif fault == "soil_as_a_score":
            loss = -((predicted.squeeze(1) - y[rows]) ** 2).mean()
        else:
            loss = ((predicted.squeeze(1) - y[rows]) ** 2).mean()
        loss.backward()
        optimizer.step()
        if fault != "soil_optimizer_in_the_loop":
            milestones.step()
        value = loss.item()
    with torch.no_grad():
        error = (net(test_x).squeeze(1) - test_y).square().mean().nan_to_num(100.0).clamp(max=100.0).item()
    return {"loss": value if math.isfinite(value) else 1e9, "error": error}


soil.mistake(
    "soil_never_cleared", "GRD007",
    summary="zero_grad() went missing when the loop was rewritten.",
    change="call zero_grad() in every step",
)  # fmt: skip
soil.mistake(
    "soil_cleared_while_warming_up", "GRD007",
    summary="zero_grad() is indented under the warm-up: from step 70 on gradients pile up.",
    change="call zero_grad() in every step",
    onset=70,
)  # fmt: skip
soil.mistake(
    "soil_column_against_row", "LSS002",
    summary="Predictions of shape [64, 1] minus targets of shape [64]: every field is compared with every other.",
    change="squeeze the predictions",
)  # fmt: skip
soil.mistake(
    "soil_as_a_score", "LSS003",
    summary="The squared error with a minus, as a score to be maximised, is given to an optimizer that minimises.",
    change="drop the minus",
)  # fmt: skip
soil.mistake(
    "soil_optimizer_in_the_loop", "OPT008",
    summary="The optimizer is built within the loop: its momentum never lasts longer than a step.",
    change="build it before the loop",
)  # fmt: skip
soil.mistake(
    "soil_divided_by_nothing", "NUM004", "NUM002", "NUM001",
    summary="The standardisation divides by a deviation without eps: switched-off columns give 0/0.",
    change="an eps under the root",
    layers=("even",),
)  # fmt: skip
soil.mistake(
    "soil_guarded_after_the_root", "NUM001",
    summary="The deviation is clamped after the root: the values are fine, the slope of the root of zero is not.",
    change="an eps under the root",
    layers=("even", "ground"),
)  # fmt: skip


@program(steps=160, bites="error", adversarial="large gradients explode: here an added error over fields in raw units")
def soil_in_litres(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same table with moisture in litres per hectare, the error added up; Adam does not mind, the output scales."""
    torch.manual_seed(seed)
    x, y = fields(1200, seed)
    litres = 5000 * y + 20_000
    net = nn.Sequential(nn.Linear(COLUMNS, 96), nn.SELU(), nn.Linear(96, 96), nn.SELU(), nn.Linear(96, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    value = math.nan
    for _ in range(steps):
        rows = torch.randint(1000, (100,))
        predicted = 20_000 + 5000 * net(x[rows]).squeeze(1)
        loss = nn.functional.l1_loss(predicted, litres[rows], reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    with torch.no_grad():
        error = (net(x[1000:]).squeeze(1) - y[1000:]).square().mean().item()
    return {"loss": value, "error": error}


@program(
    steps=160, bites="error", adversarial="gradients that agree from step to step were not cleared: this is one batch"
)
def soil_all_fields_at_once(steps: int, seed: int, fault: str) -> dict[str, float]:
    """All fields in every step, plain gradient descent with heavy momentum: successive gradients point the same way."""
    torch.manual_seed(seed)
    x, y = fields(1200, seed)
    net = nn.Sequential(nn.Linear(COLUMNS, 48), nn.Tanh(), nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.95)
    value = math.nan
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x[:1000]), y[:1000, None])
        loss.backward()
        optimizer.step()
        value = loss.item()
    with torch.no_grad():
        error = nn.functional.mse_loss(net(x[1000:]), y[1000:, None]).item()
    return {"loss": value, "error": error}


@program(steps=150, bites="error")
def soil_three_quantiles(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Low, middle and high estimate by the pinball loss, Adamax, a factor of 0.98 every second step."""
    torch.manual_seed(seed)
    x, y = fields(1200, seed)
    levels = torch.tensor([0.1, 0.5, 0.9])
    net = nn.Sequential(nn.Linear(COLUMNS, 80), nn.Mish(), nn.Linear(80, 40), nn.Mish(), nn.Linear(40, 3))
    optimizer = torch.optim.Adamax(net.parameters(), lr=1e-2)
    fade = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.98)
    value = math.nan
    for _ in range(steps):
        rows = torch.randint(1000, (64,))
        gap = y[rows, None] - net(x[rows])
        loss = torch.maximum(levels * gap, (levels - 1) * gap).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        fade.step()
        value = loss.item()
    with torch.no_grad():
        error = (net(x[1000:])[:, 1] - y[1000:]).square().mean().item()
    return {"loss": value, "error": error}
