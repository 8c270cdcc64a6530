"""Forecast the level of a river from sensors: dilated causal convolutions, quantile loss."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from corpus.case import program

WINDOW, SENSORS = 32, 3
QUANTILES = torch.tensor([0.1, 0.5, 0.9])


def river(seed: int, hours: int) -> Tensor:
    """Level, rain and temperature by the hour, in standard units."""
    g = torch.Generator().manual_seed(seed)
    rain = torch.relu(torch.randn(hours, generator=g) - 1.0) * 2
    time = torch.arange(float(hours))
    warm = torch.sin(2 * math.pi * time / 24) + 0.2 * torch.randn(hours, generator=g)
    level = torch.zeros(hours)
    for hour in range(6, hours):
        level[hour] = 0.85 * level[hour - 1] + 0.8 * rain[hour - 5] - 0.1 * warm[hour - 2]
    series = torch.stack([level, rain, warm], 1)
    return (series - series.mean(0)) / series.std(0)


def windows(series: Tensor) -> tuple[Tensor, Tensor]:
    """What was measured in 32 hours, and the level four hours later."""
    inputs = series.unfold(0, WINDOW, 1)[:-4]
    return inputs.contiguous(), series[WINDOW + 3 :, 0].contiguous()


class Causal(nn.Module):
    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = weight_norm(nn.Conv1d(inputs, outputs, 3, dilation=dilation))
        self.skip = nn.Conv1d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(self.pad(x))) + self.skip(x)


class Forecaster(nn.Module):
    """Blocks of growing dilation, the last hour of which is read."""

    def __init__(self, width: int, as_list: bool) -> None:
        super().__init__()
        sizes = [SENSORS, width, width, width]
        blocks = [Causal(i, o, 2**n) for n, (i, o) in enumerate(pairwise(sizes))]
        self.blocks = blocks if as_list else nn.ModuleList(blocks)  # at fault: river_blocks_in_a_list
        self.read = nn.Linear(width, len(QUANTILES))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.read(x[..., -1])


def pinball(forecast: Tensor, level: Tensor) -> Tensor:
    error = level[:, None] - forecast
    return torch.maximum(QUANTILES * error, (QUANTILES - 1) * error).mean()


def restarts(base: float, peak: float, period: int):
    """Cosine from the peak down to the base, again and again; the first period starts at the base."""

    def factor(step: int) -> float:
        top = base if step < period else peak
        return top * 0.5 * (1 + math.cos(math.pi * (step % period) / period)) / base

    return factor


@program(steps=300, bites="loss")
def river_forecast(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Temporal convolutions with weight norm that forecast three quantiles, Adam with warm restarts."""
    torch.manual_seed(seed)
    inputs, levels = windows(river(seed, 2500))
    test_inputs, test_levels = windows(river(seed + 60, 800))
    if mistake == "river_inputs_shuffled_alone":
        inputs = inputs[torch.randperm(len(inputs))]  # at fault: river_inputs_shuffled_alone
    model = Forecaster(16, as_list=mistake == "river_blocks_in_a_list")
    base = 4e-3
    peak = 1.0 if mistake == "river_restart_at_full_rate" else base
    optimizer = torch.optim.Adam(model.parameters(), lr=base)
    factor = restarts(base, peak, 150)  # at fault: river_restart_at_full_rate
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for step in range(steps):
        rows = torch.randint(len(inputs), (48,))
        x, y = inputs[rows], levels[rows]
        if mistake == "river_sensor_overflow" and 200 <= step < 203:
            x = torch.where(torch.rand(x.shape) < 0.3, 65535.0, x)  # at fault: river_sensor_overflow
        loss = pinball(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return {"loss": min(5.0, pinball(model(test_inputs), test_levels).item())}


river_forecast.mistake(
    "river_inputs_shuffled_alone",
    "DAT004",
    summary="The windows were shuffled, the levels to forecast were not.",
    change="one permutation for both",
)
river_forecast.mistake(
    "river_blocks_in_a_list",
    "UPD003",
    summary="The blocks are kept in a Python list, so the optimizer never gets their parameters.",
    change="nn.ModuleList",
)
river_forecast.mistake(
    "river_restart_at_full_rate",
    "OPT007",
    "UPD001",
    summary="The second period of the warm restarts begins at a rate of 1.",
    change="the same peak as before",
    onset=150,
)
river_forecast.mistake(
    "river_sensor_overflow",
    "DAT002",
    "OPT003",
    summary="For three batches a third of the measurements is 65535, the sensor's word for no value.",
    change="no such values",
    onset=200,
    steps=230,
)
