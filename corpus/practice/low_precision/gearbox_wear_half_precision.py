"""Vibrations of a gearbox: which part is worn, and how far? Convolutions in half precision, and a perceptron."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

PARTS, SAMPLES, RECORDS = 5, 96, 900


def recordings(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A tone and its overtone for every part, with noise; how worn the part is shows in the overtone."""
    rng = torch.Generator().manual_seed(300 + seed)
    part = torch.randint(PARTS, (RECORDS,), generator=rng)
    wear = torch.rand(RECORDS, generator=rng)
    time = torch.arange(SAMPLES) / SAMPLES
    phase = 2 * math.pi * torch.rand(RECORDS, 1, generator=rng)
    angle = 2 * math.pi * (4 + 3 * part)[:, None] * time + phase
    wave = angle.sin() + wear[:, None] * (2 * angle + 1).sin() + 0.3 * torch.randn(RECORDS, SAMPLES, generator=rng)
    return wave[:, None], part, wear


class Energy(nn.Module):
    """The energy of each channel over the recording."""

    def __init__(self, raw: bool) -> None:
        super().__init__()
        self.raw = raw

    def forward(self, x: Tensor) -> Tensor:
        if self.raw:  # meant: the mean
            return (x * 250).square().sum(-1)
        return x.square().mean(-1)


class PartNet(nn.Module):
    def __init__(self, raw_energy: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 16, 9, stride=2, padding=4)
        self.second = nn.Conv1d(16, 24, 7, stride=2, padding=3)
        self.energy = Energy(raw_energy)
        self.out = nn.Linear(24, PARTS)

    def forward(self, wave: Tensor) -> Tensor:
        h = torch.relu(self.first(wave))
        return self.out(self.energy(torch.relu(self.second(h))))


@program(steps=120, bites="accuracy")
def gearbox_parts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The worn part by a small convolutional net under fp16 autocast with a small loss and a loss scale."""
    torch.manual_seed(seed)
    wave, part, _ = recordings(seed)
    if fault == "gearbox_parts_in_counts":
        wave = wave * 2200 + 16384  # what the converter wrote
    model = PartNet(raw_energy=fault == "gearbox_parts_energy_not_averaged")
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    worst = 0.0
    scale = 1.0 if fault == "gearbox_parts_scale_forgotten" else 2.0**18
    for step in range(steps):
        rows = torch.randint(700, (32,))
        batch = wave[rows]
        if fault == "gearbox_parts_loose_cable" and step in (75, 76, 77):
            batch = batch + 4 * torch.randn(1, 1, SAMPLES)
        with torch.autocast("cpu", torch.float16):
            logits = model(batch)
        loss = nn.functional.cross_entropy(logits.float(), part[rows]) * 3e-5  # one of many terms
        optimizer.zero_grad()
        (loss * scale).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(scale)
        optimizer.step()
        worst = max(worst, loss.item() / 3e-5) if step >= 60 else 0.0
    with torch.no_grad():
        logits = model(wave[700:])
        accuracy = (logits.argmax(1) == part[700:]).float().mean().item()
        loss = nn.functional.cross_entropy(logits, part[700:]).item()
    return {"accuracy": accuracy, "loss": min(loss, 1e6) if math.isfinite(loss) else 1e6, "worst": min(worst, 1e6)}


gearbox_parts.mistake(
    "gearbox_parts_scale_forgotten",
    "NUM005", "GRD004",
    summary="Half precision with a small loss and no loss scale: gradients round to zero on their way down.",
    change="a gradient scaler",
)  # fmt: skip
gearbox_parts.mistake(
    "gearbox_parts_energy_not_averaged",
    "NUM005", "NUM004", "NUM002",
    summary="The energy is summed, not averaged, of a signal amplified in half precision: it passes 65504.",
    change="take the mean, in full precision",
    layers=("energy",),
)  # fmt: skip
gearbox_parts.mistake(
    "gearbox_parts_in_counts",
    "DAT001", "NUM005", "NUM004", "NUM002",
    summary="The recordings are the converter's raw counts around sixteen thousand.",
    change="take the offset away and scale to one",
    layers=("first", "second", "energy"),
)  # fmt: skip
gearbox_parts.mistake(
    "gearbox_parts_loose_cable",
    "DAT002", "OPT003", "GRD006", "DAT001",
    summary="Three batches come from a loose cable: noise several times as loud as the signal.",
    change="drop such recordings",
    onset=75,
    bites="worst",
)  # fmt: skip


@program(steps=150)
def gearbox_wear(steps: int, seed: int, fault: str) -> dict[str, float]:
    """How worn is it? Regression by gradient descent with momentum, the rate halved at every third of the run."""
    torch.manual_seed(seed)
    wave, _, wear = recordings(seed)
    spectrum = torch.fft.rfft(wave[:, 0]).abs()[:, :44] / 10
    net = nn.Sequential(nn.Linear(44, 48), nn.Tanh(), nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, 1))
    momentum = 0.999 if fault == "gearbox_wear_flywheel" else 0.9
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=momentum, weight_decay=1e-4)
    every = 2 if fault == "gearbox_wear_thirds_of_nothing" else steps // 3  # steps // 3 // epochs, rounded down
    schedule = torch.optim.lr_scheduler.StepLR(sgd, every, gamma=0.5)
    goal = wear.mul(2).sub(1)
    if fault == "gearbox_wear_of_the_next_machine":
        goal = goal.roll(1)
    pool = torch.arange(700)
    if fault == "gearbox_wear_worn_last":
        pool = goal[:700].argsort()
    for step in range(steps):
        if fault == "gearbox_wear_worn_last":
            rows = pool[(step * 25) % 700 : (step * 25) % 700 + 25]
        else:
            rows = pool[torch.randint(700, (25,))]
        loss = nn.functional.mse_loss(net(spectrum[rows]).squeeze(-1), goal[rows])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        schedule.step()
    with torch.no_grad():
        error = nn.functional.mse_loss(net(spectrum[700:]).squeeze(-1), goal[700:]).item()
    return {"loss": min(error, 1e6) if math.isfinite(error) else 1e6}


gearbox_wear.mistake(
    "gearbox_wear_flywheel",
    "OPT008", "OPT004", "OPT007", "UPD001",
    summary="Momentum of 0.999: the weights roll on for a thousand steps after every push.",
    change="momentum 0.9",
)  # fmt: skip
gearbox_wear.mistake(
    "gearbox_wear_thirds_of_nothing",
    "OPT007", "UPD002",
    summary="The length of a stage is divided by the epochs once more: the rate is halved every second step.",
    change="halve at every third of the run",
)  # fmt: skip
gearbox_wear.mistake(
    "gearbox_wear_of_the_next_machine",
    "DAT004", "OPT005", "GRD008", "OPT006",
    summary="A header line was skipped in one file only: every recording has the wear of the machine before it.",
    change="join by the machine's number",
)  # fmt: skip
gearbox_wear.mistake(
    "gearbox_wear_worn_last",
    "DAT005",
    summary="The archive is sorted by wear and read in order.",
    change="shuffle",
)
