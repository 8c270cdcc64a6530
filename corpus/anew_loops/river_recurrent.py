"""Levels of a river forecast by recurrent nets: truncated backpropagation, hand-written schedules, clipping."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program
from undertow.demos.case import Fault, sick


def river(seed: int, rivers: int, length: int) -> Tensor:
    """Two seasons, a memory of rain, and some noise (length × rivers)."""
    generator = torch.Generator().manual_seed(seed)
    phase = 6.28 * torch.rand(rivers, generator=generator)
    time = torch.arange(length, dtype=torch.float32)[:, None]
    rain = (torch.rand(length, rivers, generator=generator) < 0.08).float()
    level, wet = torch.zeros(length, rivers), torch.zeros(rivers)
    for moment in range(length):
        wet = 0.85 * wet + rain[moment]
        level[moment] = wet
    noise = 0.05 * torch.randn(length, rivers, generator=generator)
    return torch.sin(0.3 * time + phase) + 0.4 * torch.sin(0.07 * time) + 0.5 * level + noise


class Forecaster(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRU(1, width)
        self.out = nn.Linear(width, 1)

    def forward(self, levels: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        hidden, state = self.cell(levels[..., None], state)
        return self.out(hidden).squeeze(-1), state


@program(steps=1000, bites="error")
def river_levels(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A GRU over chunks of 16 moments that carries its state along, detached; SGD with warm-up and clipping."""
    torch.manual_seed(seed)
    levels = river(seed, rivers=16, length=1200)
    model = Forecaster(24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    peak, warm_up = 0.03, 50
    limit = 1e-4 if mistake == "clipped_to_a_ten_thousandth" else 1.0  # at fault: clipped_to_a_ten_thousandth
    state: Tensor | None = None
    errors: list[float] = []
    for step in range(steps):
        at = (step * 16) % 1152
        if at == 0 or state is None:
            state = torch.zeros(1, 16, 24)
        chunk = levels[at : at + 17]
        predicted, state = model(chunk[:-1], state.detach())
        loss = functional.mse_loss(predicted, chunk[1:])
        rate = peak * min(1.0, (step + 1) / warm_up)
        if mistake == "warm_up_without_end":
            rate = peak * (step + 1) / warm_up  # at fault: warm_up_without_end
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)  # at fault: clipped_to_a_ten_thousandth
        optimizer.step()
        errors.append(loss.item())
    return {"error": sum(errors[-70:]) / len(errors[-70:])}


river_levels.mistake(
    "clipped_to_a_ten_thousandth", "GRD010",
    summary="Gradients are clipped to a norm of 0.0001, so that nothing moves.",
    change="clip at 1",
)  # fmt: skip
river_levels.mistake(
    "warm_up_without_end", "OPT007", "UPD001", onset=50, steps=3000,
    summary="The hand-written warm-up has no end: the rate goes on rising after step 50, to sixty times its peak.",
    change="min(1, step / warm_up)",
)  # fmt: skip


class PlainCell(nn.Module):
    """The recurrence written out, with ReLU."""

    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.recurrent = nn.Linear(width, width, bias=False)
        self.inward, self.out = nn.Linear(1, width), nn.Linear(width, 1)
        nn.init.orthogonal_(self.recurrent.weight, gain=gain)  # at fault: recurrence_that_amplifies

    def forward(self, levels: Tensor) -> Tensor:
        hidden = torch.zeros(levels.shape[1], self.recurrent.in_features)
        for level in levels:
            hidden = functional.relu(self.recurrent(hidden) + self.inward(level[:, None]))
        return self.out(hidden).squeeze(1)


@sick(
    "GRD002", "WGT003", steps=500, bites="error", layers=("recurrent",), architecture="RNN",
    change="orthogonal weights of gain 0.7",
)  # fmt: skip
def recurrence_that_amplifies(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A recurrence of gain 2.2 with ReLU over 32 moments: signals and gradients grow by a factor of ten thousand."""
    torch.manual_seed(seed)
    levels = river(seed, rivers=64, length=400)
    model = PlainCell(32, gain=2.2 if fault else 0.7)  # at fault: recurrence_that_amplifies
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    errors = []
    for _ in range(steps):
        at = int(torch.randint(400 - 33, ()).item())
        loss = functional.mse_loss(model(levels[at : at + 32]), levels[at + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(loss.item())
    recent = sum(errors[-50:]) / len(errors[-50:])
    return {"error": min(recent, 1e6) if math.isfinite(recent) else 1e6}


@healthy(steps=900, adversarial="the state is cut at every chunk and some chunks are skipped; a teacher fades out")
def scheduled_sampling(steps: int, seed: int) -> dict[str, float]:
    """The cell is fed its own predictions ever more often, so that the loss rises while the forecast gets better."""
    torch.manual_seed(seed)
    levels = river(seed, rivers=16, length=800)
    cell, out = nn.GRUCell(1, 24), nn.Linear(24, 1)
    optimizer = torch.optim.Adam([*cell.parameters(), *out.parameters()], lr=3e-3)
    losses = []
    for step in range(steps):
        at = int(torch.randint(800 - 13, ()).item())
        state, given, total = torch.zeros(16, 24), levels[at], torch.tensor(0.0)
        for moment in range(1, 13):
            state = cell(given[:, None], state)
            predicted = out(state).squeeze(1)
            total = total + functional.mse_loss(predicted, levels[at + moment]) / 12
            own = torch.rand(16) < 0.5 * step / steps
            given = torch.where(own, predicted, levels[at + moment]).detach()
        optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_([*cell.parameters(), *out.parameters()], 1.0)
        optimizer.step()
        losses.append(total.item())
    return {"loss": sum(losses[-50:]) / len(losses[-50:])}


@healthy(steps=1200, adversarial="only the read-out learns; the recurrent weights are random and large on purpose")
def reservoir_of_the_river(steps: int, seed: int) -> dict[str, float]:
    """A reservoir of frozen random units of which only the read-out is trained."""
    torch.manual_seed(seed)
    levels = river(seed, rivers=16, length=600)
    reservoir = nn.RNN(1, 80).requires_grad_(False)
    nn.init.orthogonal_(reservoir.weight_hh_l0, gain=0.95)
    read_out = nn.Linear(80, 1)
    optimizer = torch.optim.Adam(read_out.parameters(), lr=2e-3)
    loss, state = torch.tensor(0.0), None
    for step in range(steps):
        at = (step * 16) % 576
        hidden, state = reservoir(levels[at : at + 16, :, None], state if at else None)
        loss = functional.mse_loss(read_out(hidden).squeeze(-1), levels[at + 1 : at + 17])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
