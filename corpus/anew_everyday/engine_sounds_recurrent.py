"""Tell engines by their sound: a recurrent cell of one's own, and convolutions with gathered gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

ENGINES, LENGTH = 5, 40


def sounds(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Two channels of sound; engines differ in pitch and in how the channels follow each other."""
    g = torch.Generator().manual_seed(seed)
    engine = torch.randint(ENGINES, (count,), generator=g)
    time = torch.arange(float(LENGTH))
    pitch = 0.25 + 0.08 * engine[:, None] + 0.01 * torch.randn(count, 1, generator=g)
    phase = 2 * math.pi * torch.rand(count, 1, generator=g)
    left = torch.sin(pitch * time + phase)
    right = torch.sin(pitch * time + phase + 0.6 * engine[:, None])
    both = torch.stack([left, right], -1)
    return both + 0.5 * torch.randn(both.shape, generator=g), engine


class RectifiedRecurrence(nn.Module):
    """The plain recurrent cell with a ReLU; the recurrent weight starts as a multiple of the identity."""

    def __init__(self, inputs: int, width: int, start: float) -> None:
        super().__init__()
        self.enter, self.recur = nn.Linear(inputs, width), nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.recur.weight.copy_(start * torch.eye(width))  # at fault: engine_recurrence_above_one

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), self.recur.in_features)
        for step in self.enter(x).unbind(1):
            h = torch.relu(step + self.recur(h))
        return h


@program(steps=200, bites="accuracy")
def engine_rectified_recurrence(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Recurrent network of ReLUs, started as the identity, SGD with momentum."""
    torch.manual_seed(seed)
    x, engine = sounds(seed, 1500)
    start = 2.0 if mistake == "engine_recurrence_above_one" else 0.95
    model = nn.Sequential(RectifiedRecurrence(2, 48, start), nn.Linear(48, ENGINES))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (48,))
        loss = F.cross_entropy(model(x[rows]), engine[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, engine = sounds(seed + 14, 500)
    with torch.no_grad():
        return {"accuracy": (model(x).argmax(1) == engine).float().mean().item()}


engine_rectified_recurrence.mistake(
    "engine_recurrence_above_one",
    "GRD002",
    "WGT003",
    summary="The recurrent weight starts as twice the identity: forty steps multiply by a million million.",
    change="0.95 times the identity",
    layers=("0.recur",),
)


class EngineConvolutions(nn.Sequential):
    def __init__(self, width: int = 24) -> None:
        super().__init__(
            nn.Conv1d(2, width, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(width, 2 * width, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(4),
            nn.Flatten(), nn.Linear(8 * width, 48), nn.ReLU(), nn.Linear(48, ENGINES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2))


@program(steps=120, bites="accuracy")
def engine_gathered_gradients(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Convolutions over time; every step gathers the gradients of eight micro-batches, SGD with momentum."""
    torch.manual_seed(seed)
    x, engine = sounds(seed, 1500)
    model = EngineConvolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    micro_batches = 8
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            rows = torch.randint(len(x), (12,))
            loss = F.cross_entropy(model(x[rows]), engine[rows])
            if mistake != "engine_micro_batches_added":
                loss = loss / micro_batches
            loss.backward()  # at fault: engine_micro_batches_added
        optimizer.step()
    x, engine = sounds(seed + 14, 500)
    with torch.no_grad():
        return {"accuracy": (model(x).argmax(1) == engine).float().mean().item()}


engine_gathered_gradients.mistake(
    "engine_micro_batches_added",
    "LSS004",
    summary="The losses of eight micro-batches are added up, not averaged.",
    change="loss / micro_batches",
)
