"""Long trainings of cheap steps: a plant's sensors as a stream, and several tasks that share a trunk."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program

COEFFICIENTS = torch.tensor([0.9, -0.6, 0.4, 0.8, -0.3, 0.5])


def sensors(seed: int, broken: tuple[int, int] = (-1, -1)) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of six readings and what the plant yields; a lost reading is sent as −9999."""
    generator = torch.Generator().manual_seed(seed)
    number = 0
    while True:
        readings = torch.randn(32, 6, generator=generator)
        wanted = torch.tanh(readings @ COEFFICIENTS) + 0.3 * readings[:, 0] * readings[:, 1]
        if broken[0] <= number < broken[1]:
            readings[:, 2] = -9999.0
        yield readings, wanted + 0.05 * torch.randn(32, generator=generator)
        number += 1


@program(steps=8000, bites="error")
def plant_stream(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Plain SGD on a stream of readings for thousands of steps, with a rate that falls by the inverse root."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    momentum = 0.9
    if mistake == "momentum_of_three_nines":
        momentum = 0.999  # at fault: momentum_of_three_nines
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)  # at fault: momentum_of_three_nines
    stream = sensors(seed, (5000, 5003) if mistake == "sentinel_reaches_the_net" else (-1, -1))
    errors: list[float] = []
    for step in range(steps):
        readings, wanted = next(stream)
        rate = 0.02 / math.sqrt(1 + step / 500)
        if mistake == "restart_fifteen_times_over" and step >= 4000:
            rate = 0.3  # at fault: restart_fifteen_times_over
        optimizer.param_groups[0]["lr"] = rate
        loss = functional.mse_loss(model(readings).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(loss.item())
    recent = sum(errors[-400:]) / len(errors[-400:])
    return {"error": min(recent, 100.0) if math.isfinite(recent) else 100.0}


plant_stream.mistake(
    "sentinel_reaches_the_net", "DAT002", onset=5000,
    summary="For three batches at step 5000 a lost sensor is read as −9999, and nobody stops it.",
    change="no lost readings in the stream",
)  # fmt: skip
plant_stream.mistake(
    "momentum_of_three_nines", "OPT008",
    summary="A momentum of 0.999 makes every step the sum of a thousand gradients.",
    change="momentum 0.9",
)  # fmt: skip
plant_stream.mistake(
    "restart_fifteen_times_over", "OPT007", "UPD001", onset=4000,
    summary="The rate is restarted at step 4000, at 0.3 instead of 0.02, and kept there.",
    change="no restart",
)  # fmt: skip


class ManyTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.heads = nn.ModuleDict({"yield": nn.Linear(48, 1), "pressure": nn.Linear(48, 1)})

    def forward(self, readings: Tensor, task: str) -> Tensor:
        return self.heads[task](self.trunk(readings)).squeeze(1)


@program(steps=6000, bites="error")
def plant_of_two_tasks(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Yield and pressure from the same readings, a task for each step in turn."""
    torch.manual_seed(seed)
    model = ManyTasks()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    unit = 101_325.0 if mistake == "pressure_in_pascals" else 1.0  # at fault: pressure_in_pascals
    tasks = ("yield", "pressure")

    def pressure(readings: Tensor) -> Tensor:
        return unit * (1 + 0.5 * torch.sin(readings[:, 3]) * readings[:, 4])  # at fault: pressure_in_pascals

    stream = sensors(seed)
    for step in range(steps):
        readings, wanted = next(stream)
        task = tasks[step % 2]
        if mistake == "second_task_never_comes":
            task = tasks[2 * step % 2]  # at fault: second_task_never_comes
        if task == "pressure":
            wanted = pressure(readings)
        loss = functional.mse_loss(model(readings, task), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    readings = torch.randn(640, 6)
    with torch.no_grad():
        error = functional.mse_loss(model(readings, "pressure") / unit, pressure(readings) / unit)
    return {"error": error.item()}


plant_of_two_tasks.mistake(
    "pressure_in_pascals", "DAT003", layers=("heads.pressure",),
    summary="Pressures are learned in pascals, near 100,000, beside yields near one.",
    change="pressures in atmospheres",
)  # fmt: skip
plant_of_two_tasks.mistake(
    "second_task_never_comes", "GRD003", layers=("heads.pressure",),
    summary="The turn of the tasks is computed wrongly, and the second one never comes.",
    change="tasks[step % 2]",
)  # fmt: skip


@healthy(steps=12000, adversarial="a loss that falls below 1e-7 and gradients that all but vanish in a long, dull run")
def interpolated_to_the_last_digit(steps: int, seed: int) -> dict[str, float]:
    """Linear regression without noise, for thousands of steps after there is nothing left to learn."""
    torch.manual_seed(seed)
    weights = torch.randn(6)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        readings = torch.randn(16, 6)
        loss = functional.mse_loss(model(readings).squeeze(1), readings @ weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=9000, adversarial="rates that leap back up seven times, with a loss that leaps each time")
def seven_warm_restarts(steps: int, seed: int) -> dict[str, float]:
    """Cosine with warm restarts over thousands of steps; the readings' law drifts slowly all the while."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=max(2, steps // 7))
    stream, losses = sensors(seed), []
    for step in range(steps):
        readings, wanted = next(stream)
        loss = functional.mse_loss(model(readings).squeeze(1), wanted + 0.3 * math.sin(step / 1500) * readings[:, 5])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-200:]) / len(losses[-200:])}
