"""Seismograms in half precision: which kind of quake was it, with a gradient scaler as the tutorials show it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

KINDS, SAMPLES = 4, 96


def record(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Three channels; the kind decides how fast the ground swings and how soon it calms down."""
    rng = torch.Generator().manual_seed(seed)
    kind = torch.randint(KINDS, (count,), generator=rng)
    time = torch.linspace(0, 1, SAMPLES)
    swing = (6.0 + 5.0 * kind)[:, None] * (1 + 0.05 * torch.randn(count, 1, generator=rng))
    calm = torch.exp(-time * (1.0 + 1.5 * (kind % 2))[:, None])
    wave = torch.sin(6.2832 * swing * time + 6.2832 * torch.rand(count, 1, generator=rng)) * calm
    loud = torch.rand(count, 3, 1, generator=rng) + 0.5
    return wave[:, None] * loud + 0.5 * torch.randn(count, 3, SAMPLES, generator=rng), kind


class Energy(nn.Module):
    """The power of every channel in counts squared, which the classifier sees beside the waves."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        counts = x * self.gain
        return torch.log1p((counts * counts).sum(-1))


class QuakeNet(nn.Module):
    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.energy = Energy(gain)
        self.waves = nn.Sequential(
            nn.Conv1d(3, 16, 9, stride=2, padding=4), nn.ReLU(), nn.Conv1d(16, 16, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv1d(16, 24, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.kind = nn.Linear(24 * 12 + 3, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.kind(torch.cat([self.waves(x), self.energy(x).to(x.dtype)], 1))


@program(steps=130, bites="accuracy")
def seismograms(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A one-dimensional network in half precision under autocast, a scaler, SGD with momentum and a clipped norm."""
    torch.manual_seed(seed)
    waves, kinds = record(seed, 640)
    model = QuakeNet(gain=60.0 if fault == "quake_energy_in_counts" else 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    rng = torch.Generator().manual_seed(seed)
    first, value = 0.0, 0.0
    for step in range(steps):
        index = torch.randint(640, (32,), generator=rng)
        batch = waves[index]
        if fault == "quake_loud_station_joins" and step >= 40:
            batch = batch * torch.where(torch.arange(32) % 4 == 0, 400.0, 1.0)[:, None, None]
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(batch.half())
            loss = nn.functional.cross_entropy(logits, kinds[index])
        scaler.scale(loss).backward()
        if fault != "quake_clipped_while_scaled":
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        value = loss.item() if loss.isfinite() else 1e6
        first = value if step == 0 else first
    test_waves, test_kinds = record(seed + 300, 256)
    with torch.no_grad():
        guess = model.float()(test_waves).argmax(1)
    accuracy = (guess == test_kinds).float().mean().item()
    return {"loss": value, "first": first, "accuracy": accuracy}


seismograms.mistake(
    "quake_clipped_while_scaled",
    "GRD010", "UPD002", "OPT007",
    summary="The norm is clipped before the scaler divides: gradients end four thousand times too small.",
    change="unscale before clipping",
)  # fmt: skip
seismograms.mistake(
    "quake_energy_in_counts",
    "NUM005", "NUM004", "NUM002",
    summary="The channel energies add up squares of raw counts in half precision and overflow.",
    change="sum in single precision, or in units of the gain",
    layers=("energy",),
)  # fmt: skip
seismograms.mistake(
    "quake_loud_station_joins",
    "NUM005", "NUM004", "NUM002", "DAT001", "DAT002",
    summary="From step 40 a quarter of the records comes from a station four hundred times louder: energies overflow.",
    change="bring stations to one unit",
    layers=("energy",),
    onset=40,
)  # fmt: skip


def arrivals(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Noise, then the quake; the answer says for every sample whether it has begun."""
    rng = torch.Generator().manual_seed(seed)
    begin = torch.randint(20, 80, (count, 1), generator=rng)
    begun = (torch.arange(SAMPLES) >= begin).float()
    ground = torch.randn(count, 3, SAMPLES, generator=rng)
    return ground * (0.5 + 1.2 * begun[:, None]), begun


@program(steps=130, bites="accuracy")
def quake_arrivals(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Since when does the ground shake: a loss per sample with a small weight in half precision, Adam and a scaler."""
    torch.manual_seed(seed)
    waves, begun = arrivals(seed, 480)
    model = nn.Sequential(
        nn.Conv1d(3, 12, 9, padding=4), nn.ReLU(), nn.Conv1d(12, 12, 9, padding=4), nn.ReLU(),
        nn.Conv1d(12, 12, 9, padding=4), nn.ReLU(), nn.Conv1d(12, 1, 9, padding=4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    use_scaler = fault != "quake_scaler_left_out"
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, enabled=use_scaler)
    rng = torch.Generator().manual_seed(seed)
    first, value = 0.0, 0.0
    for step in range(steps):
        if fault == "quake_scaler_off_after_the_resume" and step == 30:
            scaler = torch.amp.GradScaler("cpu", enabled=False)
        index = torch.randint(480, (24,), generator=rng)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(waves[index].half()).squeeze(1)
            picking = nn.functional.binary_cross_entropy_with_logits(logits, begun[index].half())
        loss = 1e-4 * picking  # the weight it has beside the terms that come later
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        value = picking.item()
        first = value if step == 0 else first
    test_waves, test_begun = arrivals(seed + 300, 128)
    with torch.no_grad():
        right = (model.float()(test_waves).squeeze(1) > 0) == (test_begun > 0.5)
    return {"loss": value, "first": first, "accuracy": right.float().mean().item()}


quake_arrivals.mistake(
    "quake_scaler_left_out",
    "NUM005", "GRD004",
    summary="The scaler is made with enabled=False: the small loss gives gradients that half precision rounds to zero.",
    change="enable the scaler",
)  # fmt: skip
quake_arrivals.mistake(
    "quake_scaler_off_after_the_resume",
    "NUM005", "GRD004",
    summary="The run resumed at step 30 has no scaler: from there on the gradients round to zero.",
    change="make the scaler as before and load its state",
    onset=30,
    bites="loss",
)  # fmt: skip


def strong_ones(seed: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """Waves, and how strong the quake was: mostly weak, now and then very strong."""
    rng = torch.Generator().manual_seed(seed)
    strength = torch.distributions.Exponential(torch.tensor(1.0)).icdf(torch.rand(640, generator=rng)) ** 1.5
    waves = torch.randn(640, 3, SAMPLES, generator=rng) * (0.3 + strength[:, None, None]) / 2
    return waves, strength, rng


@program(steps=120, bites="loss")
def quake_warning(steps: int, seed: int, fault: str) -> dict[str, float]:
    """How strong was it, by descent with momentum; rare strong quakes need the clipped norm."""
    torch.manual_seed(seed)
    waves, strength, rng = strong_ones(seed)
    model = nn.Sequential(
        nn.Conv1d(3, 16, 9, stride=4, padding=4), nn.ReLU(), nn.Conv1d(16, 16, 5, stride=4), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 5, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    history: list[float] = []
    for _ in range(steps):
        index = torch.randint(640, (32,), generator=rng)
        loss = nn.functional.mse_loss(model(waves[index]).squeeze(1), strength[index])
        optimizer.zero_grad()
        loss.backward()
        if fault == "quake_clipped_after_the_step":
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        history.append(min(loss.item(), 1e6) if loss.isfinite() else 1e6)
    return {"loss": sum(history[-20:]) / 20, "first": history[0]}


quake_warning.mistake(
    "quake_clipped_after_the_step",
    "UPD001", "OPT007", "OPT001", "GRD006", "GRD002", "OPT003",
    summary="The norm is clipped after the step that it should protect: the first strong quake throws the weights off.",
    change="clip between backward and step",
)  # fmt: skip


@program(steps=110, bites="accuracy", adversarial="low precision without a scaler")
def quake_brain_float(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same waves in bfloat16 under autocast, which needs no scaler, with NAdam."""
    torch.manual_seed(seed)
    waves, kinds = record(seed, 640)
    model = QuakeNet()
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    rng = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        index = torch.randint(640, (32,), generator=rng)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(waves[index]), kinds[index])
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    test_waves, test_kinds = record(seed + 300, 256)
    with torch.no_grad():
        accuracy = (model(test_waves).argmax(1) == test_kinds).float().mean().item()
    return {"loss": history[-1], "first": history[0], "accuracy": accuracy}


@program(steps=120, bites="accuracy", adversarial="gradients that are infinite, and steps that change nothing")
def quake_scale_too_high_at_first(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The scaler starts far too high, skips the first steps until it has come down, and trains on; half precision."""
    torch.manual_seed(seed)
    waves, kinds = record(seed, 640)
    model = QuakeNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=40)
    rng = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        index = torch.randint(640, (32,), generator=rng)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(waves[index].half()), kinds[index])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        history.append(loss.item())
    test_waves, test_kinds = record(seed + 300, 256)
    with torch.no_grad():
        accuracy = (model.float()(test_waves).argmax(1) == test_kinds).float().mean().item()
    return {"loss": history[-1], "first": history[0], "accuracy": accuracy}


@program(
    steps=120, bites="loss", adversarial="a loss with heavy tails that jumps whenever a strong quake is in the batch"
)
def quake_strengths(steps: int, seed: int, fault: str) -> dict[str, float]:
    """How strong was it: a few very strong quakes make single batches loud, and the clipped norm bears it."""
    torch.manual_seed(seed)
    waves, strength, rng = strong_ones(seed)
    model = nn.Sequential(
        nn.Conv1d(3, 16, 9, stride=4, padding=4), nn.GELU(), nn.Conv1d(16, 16, 5, stride=4), nn.GELU(), nn.Flatten(),
        nn.Linear(16 * 5, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    history: list[float] = []
    for _ in range(steps):
        index = torch.randint(640, (32,), generator=rng)
        loss = nn.functional.mse_loss(model(waves[index]).squeeze(1), strength[index])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-20:]) / 20, "first": history[0]}
