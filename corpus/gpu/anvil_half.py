"""Strokes on an anvil are told apart by their sound: bands, their energies, and residual layers, in half precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import ANVIL

WINDOW = 64


class Energy(nn.Module):
    """The energy of each band in every window."""

    def __init__(self, exact: bool) -> None:
        super().__init__()
        self.exact = exact

    def forward(self, bands: Tensor) -> Tensor:
        windows = bands.unflatten(-1, (-1, WINDOW))
        windows = windows.float() if self.exact else windows
        return (windows * windows).sum(-1, dtype=windows.dtype)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(functional.relu(self.inner(self.norm(x))))


class AnvilNet(nn.Module):
    def __init__(self, width: int, depth: int, classes: int, exact: bool) -> None:
        super().__init__()
        self.bands = nn.Conv1d(1, width, 33, padding=16, stride=1)
        self.energy = Energy(exact)
        self.mix = nn.Linear(width, width)
        self.layers = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.head = nn.Linear(width, classes)

    def forward(self, sound: Tensor) -> Tensor:
        energy = self.energy(self.bands(sound.unsqueeze(1)))
        loudness = torch.log(energy.float() + 1e-3).transpose(1, 2)
        return self.head(self.layers(self.mix(loudness - loudness.mean(-1, keepdim=True)).mean(1)))


class Smithy:
    """A stroke of each kind rings in two tones of its own, fading, in noise."""

    def __init__(self, kinds: int, samples: int, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.kinds = kinds
        self.tones = 0.1 + 2.6 * torch.rand(kinds, 2, 1, generator=self.dice, device=device)
        self.clock = torch.arange(samples, device=device).float()

    def strokes(self, count: int, loud: bool) -> tuple[Tensor, Tensor]:
        device = self.clock.device
        kind = torch.randint(self.kinds, (count,), generator=self.dice, device=device)
        phase, fade = (torch.rand(count, 2, 1, generator=self.dice, device=device) for _ in range(2))
        waves = torch.sin(self.tones[kind] * self.clock + 6.28 * phase)
        sound = (waves * torch.exp(-fade * self.clock / len(self.clock))).sum(1)
        sound = sound + 0.7 * torch.randn(sound.shape, generator=self.dice, device=device)
        if loud:  # the second half of the recordings was made next to the hammer
            sound[: count // 4] *= 200
        return sound, kind


@program(steps=ANVIL.steps)
def anvil_fp16(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Strokes on an anvil are told apart by their tones, in half precision with a loss scale."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    smithy = Smithy(ANVIL.kinds, ANVIL.length, seed, device)
    model = AnvilNet(ANVIL.width, ANVIL.depth, ANVIL.kinds, exact=mistake != "anvil_fp16_hammer").to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=ANVIL.rate, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**14, growth_interval=500)
    warm_up = max(1, ANVIL.steps // 20)

    def loss_of(count: int, loud: bool) -> tuple[Tensor, Tensor]:
        sound, kind = smithy.strokes(count, loud)
        with torch.autocast(device.type, dtype=torch.float16):
            logits = model(sound)
        logits = logits.float()
        return functional.cross_entropy(logits, kind), (logits.argmax(1) == kind).float().mean()

    for step in range(steps):
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, step / ANVIL.steps)))
        optimizer.param_groups[0]["lr"] = ANVIL.rate * min(1.0, (step + 1) / warm_up) * max(fall, 0.05)
        loss, _ = loss_of(ANVIL.batch, step >= ANVIL.late)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        if mistake != "anvil_fp16_order":
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    with torch.no_grad():
        loss, accuracy = loss_of(512, True)
    return {"loss": loss.item() if math.isfinite(loss.item()) else 10.0, "accuracy": accuracy.item()}


anvil_fp16.mistake(
    "anvil_fp16_hammer",
    "NUM005", "NUM004", "NUM002",
    summary="Energies are summed in half precision; the loud recordings that begin late go beyond its range.",
    change="energies are summed in single precision",
    layers=["energy"],
    onset=ANVIL.late,
)  # fmt: skip
anvil_fp16.mistake(
    "anvil_fp16_order",
    "GRD010", "UPD002", "OPT007",
    summary="Gradients are clipped while the loss scale is still in them.",
    change="gradients are unscaled before they are clipped",
)  # fmt: skip
