"""Signals from machines: temporal convolutions on windows of a sensor, with what goes wrong in data pipelines."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from corpus.case import program

STATES, WINDOW = 5, 40


def recordings(seed: int, n: int = 900) -> tuple[Tensor, Tensor]:
    """Noisy windows of three channels; the state sets frequency and phase between channels."""
    g = torch.Generator().manual_seed(seed)
    state = torch.randint(STATES, (n,), generator=g)
    time = torch.arange(WINDOW)[None, None] * (0.2 + 0.12 * state[:, None, None])
    offset = torch.arange(3)[None, :, None] * state[:, None, None] * 0.5
    start = 6.28 * torch.rand(n, 1, 1, generator=g)
    return torch.sin(time + offset + start) + 1.2 * torch.randn(n, 3, WINDOW, generator=g), state


class CausalBlock(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = nn.Conv1d(channels, channels, 3, dilation=dilation)
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.conv(self.pad(x))))


class TCN(nn.Module):
    def __init__(self, channels: int = 24) -> None:
        super().__init__()
        self.inlet = nn.Conv1d(3, channels, 1)
        self.blocks = nn.Sequential(*(CausalBlock(channels, 2**i) for i in range(3)))
        self.drop, self.outlet = nn.Dropout(0.1), nn.Linear(channels, STATES)

    def forward(self, x: Tensor) -> Tensor:
        return self.outlet(self.drop(self.blocks(self.inlet(x)).mean(-1)))


def train_one_epoch(
    model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], optimizer: torch.optim.Optimizer
) -> float:
    model.train()
    worst = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        worst = max(worst, loss.item())
    return worst


@program(steps=140, bites="accuracy")
def machine_states(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A temporal convolutional network, Adam, a MultiStep schedule; 14 steps to an epoch."""
    torch.manual_seed(seed)
    x, y = recordings(seed)
    if fault == "labels_moved_by_one_row":
        y = y.roll(1)
    model = TCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[6, 8], gamma=0.3)
    if fault == "milestones_raise_the_rate":
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[5], gamma=300.0)
    per_epoch, late = 14, 0.0
    for epoch in range(-(-steps // per_epoch)):
        count = min(per_epoch, steps - epoch * per_epoch)
        rows = torch.randperm(len(x))[: count * 64]
        if fault == "same_seed_every_epoch":
            rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:64].repeat(count)
        inputs = x[rows].clone()
        if fault == "one_batch_in_raw_counts" and epoch == 5:
            inputs[:128] = inputs[:128] * 3e4  # the converter was off for two batches
        worst = train_one_epoch(model, DataLoader(TensorDataset(inputs, y[rows]), batch_size=64), optimizer)
        late = max(late, worst) if epoch >= 5 else 0.0
        schedule.step()
    model.eval()
    test, truth = recordings(seed + 500, 400)
    with torch.no_grad():
        accuracy = (model(test).argmax(1) == truth).float().mean().item()
    return {"accuracy": accuracy, "late_loss": min(late, 100.0)}


machine_states.mistake(
    "labels_moved_by_one_row",
    "DAT004", "OPT005",
    summary="The column of labels is one row off: they have nothing to do with the inputs.",
    change="join by key, not by place",
)  # fmt: skip
machine_states.mistake(
    "milestones_raise_the_rate",
    "OPT007", "UPD001", "OPT003", "OPT001",
    summary="gamma is 300 instead of 0.3: after five epochs the learning rate is 0.9.",
    change="gamma=0.3",
    onset=70,
    bites="late_loss",
)  # fmt: skip
machine_states.mistake(
    "same_seed_every_epoch",
    "DAT005", "OPT006", "DAT002",
    summary="The sampler is seeded anew each time, so every batch of the training is the same 64 windows.",
    change="seed once",
)  # fmt: skip
machine_states.mistake(
    "one_batch_in_raw_counts",
    "DAT002", "OPT003", "GRD006",
    summary="Two batches in the sixth epoch hold raw counts, 30,000 times too large.",
    change="check the inputs",
    onset=70,
    bites="late_loss",
)  # fmt: skip
