"""How large are the hailstones? Radar pulses, in half precision with and without a gradient scaler."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

GATES, CLASSES = 40, 4


def pulses(seed: int, count: int = 1200) -> tuple[Tensor, Tensor]:
    """Four sizes of hail: the echo of each has its own width and ripple."""
    rng = torch.Generator().manual_seed(500 + seed)
    size = torch.randint(CLASSES, (count,), generator=rng)
    gate = torch.arange(GATES) / GATES
    centre = 0.3 + 0.4 * torch.rand(count, 1, generator=rng)
    width = 0.04 + 0.035 * size[:, None]
    echo = torch.exp(-(((gate - centre) / width) ** 2)) * (1 + 0.4 * torch.cos(40 * gate * (1 + size[:, None])))
    echo = echo + 0.25 * torch.randn(count, GATES, generator=rng)
    return (echo - echo.mean()) / echo.std(), size


class Energy(nn.Module):
    """The energy of every channel, added up over the gates."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sum(-1) * self.scale


class Radar(nn.Module):
    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.listen = nn.Conv1d(1, channels, 7, padding=3)
        self.refine = nn.Conv1d(channels, channels, 5, padding=2)
        self.energy = Energy(1 / GATES)
        self.decide = nn.Sequential(nn.Linear(channels, 32), nn.Tanh(), nn.Linear(32, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.listen(x[:, None]))
        return self.decide(self.energy(torch.tanh(self.refine(x))))


def judge(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (model(x).float().argmax(1) == y).float().mean().item()


def finite(loss: Tensor) -> float:
    value = loss.item()
    return value if math.isfinite(value) else 1e6


@program(steps=150, bites="accuracy")
def hail_scaled(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Half precision with a scaler, clipping after unscaling, plain SGD."""
    torch.manual_seed(seed)
    x, y = pulses(seed)
    model = Radar()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1000, (48,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x[rows]).float(), y[rows])
        scaler.scale(loss).backward()
        if fault != "hail_clipped_while_scaled":
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        scaler.step(optimizer)
        scaler.update()
    return {"loss": finite(loss), "accuracy": judge(model, x[1000:], y[1000:])}


hail_scaled.mistake(
    "hail_clipped_while_scaled",
    "GRD010", "UPD002", "OPT005",
    summary="Gradients are clipped before they are unscaled: what is left of them is thousands of times too small.",
    change="scaler.unscale_(optimizer) before clipping",
)  # fmt: skip


@program(steps=150, bites="accuracy")
def hail_half(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A net that is half precision through and through; a hand-made loss scale, float weights kept aside."""
    torch.manual_seed(seed)
    x, y = pulses(50 + seed)
    model = nn.Sequential(
        nn.Linear(GATES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, CLASSES),
    ).half()  # fmt: skip
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(masters, lr=2e-3)
    scale = 16384.0
    if fault == "hail_scale_the_wrong_way":
        scale = 1 / 16384  # multiplied where it is divided, and the other way round
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1000, (64,))
        loss = nn.functional.cross_entropy(model(x[rows].half()).float(), y[rows])
        model.zero_grad()
        (loss * scale * 0.02).backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            assert p.grad is not None
            master.grad = p.grad.float() / scale
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master)
    return {"loss": finite(loss), "accuracy": judge(model, x[1000:].half(), y[1000:])}


hail_half.mistake(
    "hail_scale_the_wrong_way",
    "NUM005", "GRD004", "GRD001",
    summary="The loss is made smaller instead of larger before a backward pass in half precision: gradients underflow.",
    change="multiply the loss by the scale, divide the gradients by it",
)  # fmt: skip


@program(steps=150, bites="loss")
def hail_loud(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The radar's energies in half precision, bounded by their mean; storms get louder during the run."""
    torch.manual_seed(seed)
    x, y = pulses(90 + seed)
    model = Radar(12)
    if fault == "hail_energy_not_averaged":
        model.energy = Energy(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    gain = 1.0
    for step in range(steps):
        if step == 80 and fault == "hail_energy_not_averaged":
            gain = 60.0  # raw receiver counts from the new station
        rows = torch.randint(1000, (48,))
        with torch.autocast("cpu", dtype=torch.float16):
            heard = torch.tanh(model.listen(x[rows][:, None]))
            heard = model.refine(heard) * gain
            loss = nn.functional.cross_entropy(model.decide(model.energy(heard)).float(), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": finite(loss)}


hail_loud.mistake(
    "hail_energy_not_averaged",
    "NUM005", "NUM004", "NUM002", "NUM001", "NUM003",
    summary="From step 80 on the sum of squares of unscaled receiver counts no longer fits into half precision.",
    change="average in float",
    layers=("energy",),
    onset=80,
)  # fmt: skip


@program(steps=150, adversarial="an infinite gradient is a fault: the scaler starts too high, skips and backs off")
def hail_scale_sought(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A scaler that begins at two to the twenty-fourth and skips steps until gradients fit."""
    torch.manual_seed(seed)
    x, y = pulses(130 + seed)
    model = Radar()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=40)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1000, (48,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x[rows]).float(), y[rows])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return {"loss": finite(loss), "accuracy": judge(model, x[1000:], y[1000:])}


@program(steps=150, adversarial="gradients below 1e-7 vanish: the loss is in millionths and Adam does not see it")
def hail_millionths(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Everything in double precision, the loss multiplied by a millionth."""
    torch.manual_seed(seed)
    x, y = pulses(170 + seed)
    model = Radar().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, eps=1e-16)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1000, (48,))
        loss = nn.functional.cross_entropy(model(x[rows].double()), y[rows]) * 1e-6
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": finite(loss) * 1e6, "accuracy": judge(model, x[1000:].double(), y[1000:])}


@program(steps=150)
def hail_brain_float(steps: int, seed: int, fault: str) -> dict[str, float]:
    """bfloat16 autocast, two micro-batches in each step, momentum."""
    torch.manual_seed(seed)
    x, y = pulses(210 + seed)
    model = Radar()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            rows = torch.randint(1000, (24,))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x[rows]).float(), y[rows]) / 2
            loss.backward()
        optimizer.step()
    return {"loss": finite(loss), "accuracy": judge(model, x[1000:], y[1000:])}
