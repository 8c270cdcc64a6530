"""A bell foundry listens to its bells: which bell rang, is it cracked, how high is it tuned."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from corpus.case import program

RATE, LENGTH = 4000, 512
PARTIALS = torch.tensor([0.5, 1.0, 1.2, 1.5, 2.0])


def strokes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Decaying partials over a strike tone; a cracked bell beats: each partial has a neighbour a few hertz away."""
    bell = torch.randint(6, (count,), generator=generator)
    cracked = torch.randint(2, (count,), generator=generator)
    tone = 220 * 2 ** (bell / 6) * (1 + 0.01 * torch.randn(count, generator=generator))
    time = torch.arange(LENGTH) / RATE
    frequency = tone[:, None, None] * PARTIALS[:, None]
    phase = 2 * math.pi * torch.rand(count, len(PARTIALS), 1, generator=generator)
    wave = torch.sin(2 * math.pi * frequency * time + phase)
    beat = torch.sin(2 * math.pi * (frequency + 28) * time + phase)
    sound = (wave + cracked[:, None, None] * beat) * torch.exp(-time * 14) / (1 + cracked[:, None, None])
    noise = 0.05 * torch.randn(count, LENGTH, generator=generator)
    return sound.mean(1) + noise, bell, cracked


class Spectrum(nn.Module):
    """Magnitudes of short windows, as logarithms."""

    window: Tensor

    def __init__(self, floor: float = 1e-4) -> None:
        super().__init__()
        self.floor = floor
        self.register_buffer("window", torch.hann_window(128))

    def forward(self, sound: Tensor) -> Tensor:
        short = torch.stft(sound, 128, 64, window=self.window, return_complex=True)
        return ((short.abs() + self.floor).log() + 2) / 2


class Levelled(nn.Module):
    """Each channel to unit deviation over the recording."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, h: Tensor) -> Tensor:
        centred = h - h.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()


class BellEar(nn.Module):
    def __init__(self, eps: float = 1e-3, floor: float = 1e-4) -> None:
        super().__init__()
        self.spectrum = Spectrum(floor)
        self.mix = nn.Conv1d(65, 32, 3)
        self.level = Levelled(eps)
        self.second = nn.Conv1d(32, 32, 3, padding=1)
        self.bell = nn.Linear(32, 6)
        self.crack = nn.Linear(32, 2)

    def forward(self, sound: Tensor) -> tuple[Tensor, Tensor]:
        h = self.level(self.mix(self.spectrum(sound)))
        h = torch.relu(h)
        h = torch.relu(self.second(h)).mean(-1)
        return self.bell(h), self.crack(h)


def mean_of(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return min(mean, 1e5) if math.isfinite(mean) else 1e5


@program(steps=130)
def bell_listener(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Log spectra, two convolutions, which bell and whether it is cracked; now and then the microphone is off."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    ear = BellEar(
        eps=0.0 if fault == "bell_levelled_without_eps" else 1e-3,
        floor=0.0 if fault == "bell_logarithm_of_silence" else 1e-4,
    )
    optimizer = torch.optim.AdamW(ear.parameters(), lr=4e-3, weight_decay=0.01)
    history: list[float] = []
    for step in range(steps):
        sound, bell, cracked = strokes(32, generator)
        if step >= 70 and step % 10 == 0:
            sound[0] = 0.0
        which, crack = ear(sound)
        loss = cross_entropy(which, bell) + cross_entropy(crack, cracked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": mean_of(history[-8:])}


bell_listener.mistake(
    "bell_levelled_without_eps",
    "NUM001", "NUM004", "NUM002", "NUM003",
    summary="The levelling divides by a deviation that is zero when the microphone is off: 0 / 0 at step 70.",
    change="add an epsilon under the root",
    layers=("level", "mix"),
    onset=70,
)  # fmt: skip
bell_listener.mistake(
    "bell_logarithm_of_silence",
    "NUM004", "NUM002", "NUM001", "NUM003", "DAT002",
    summary="The spectrum is taken to its logarithm without a floor: the first silent recording is minus infinity.",
    change="add a floor before the logarithm",
    layers=("spectrum", "mix"),
    onset=70,
)  # fmt: skip


class Tuner(nn.Module):
    """How far is the strike tone from where it should be? Straight from the wave."""

    def __init__(self) -> None:
        super().__init__()
        self.ear = nn.Sequential(
            nn.Conv1d(1, 16, 32, stride=8), nn.Tanh(), nn.Conv1d(16, 24, 8, stride=4), nn.Tanh(), nn.Flatten()
        )
        self.pool = nn.Sequential(nn.Linear(24 * 14, 32), nn.ReLU())
        self.pitch = nn.Linear(32, 1)

    def forward(self, sound: Tensor) -> Tensor:
        return self.pitch(self.pool(self.ear(sound[:, None])))[:, 0]


def tuned(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    height = 2 * torch.rand(count, generator=generator) - 1
    time = torch.arange(LENGTH) / RATE
    turn = 2 * math.pi * torch.rand(count, 1, generator=generator)
    wave = torch.sin(2 * math.pi * 200 * (1 + 0.3 * height[:, None]) * time + turn) * torch.exp(-time * 5)
    return wave + 0.1 * torch.randn(count, LENGTH, generator=generator), height


@program(steps=150)
def bell_tuner(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The height of a tone from the wave itself: strided convolutions, OneCycle, Adam."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(9 + seed)
    net = Tuner()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=200)
    start = next(net.ear.parameters()).detach().clone()
    history: list[float] = []
    for step in range(steps):
        sound, height = tuned(48, generator)
        if fault == "bell_only_the_pitch_learns":
            with torch.no_grad():  # copied from the function that makes the plots
                heard = net.ear(sound[:, None])
            guess = net.pitch(net.pool(heard))[:, 0]
        else:
            guess = net(sound)
        loss = mse_loss(guess, height)
        if step == 0 or fault != "bell_cleared_only_once":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        history.append(loss.item())
    moved = (next(net.ear.parameters()).detach() - start).norm().item()
    return {"loss": mean_of(history[-8:]), "moved": min(moved, 1e3)}


bell_tuner.mistake(
    "bell_only_the_pitch_learns",
    "GRD003",
    "UPD003",
    summary="The convolutions run under no_grad(), copied from the plotting code.",
    change="remove no_grad()",
    layers=("ear",),
    bites="moved",
    silent=True,
)
bell_tuner.mistake(
    "bell_cleared_only_once",
    "GRD007",
    summary="zero_grad() is called in the first step only.",
    change="call zero_grad() in every step",
)


@program(steps=140, adversarial="a loss term hundreds of times larger than another one drowns it")
def bell_autoencoder(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Squeezes spectra to eight numbers; the squared error is summed over the whole picture, the sparsity is a mean."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(20 + seed)
    spectrum = Spectrum()
    squeeze = nn.Sequential(nn.Flatten(), nn.Linear(65 * 9, 64), nn.SiLU(), nn.Linear(64, 8))
    widen = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 65 * 9))
    net = nn.Sequential(squeeze, widen)
    optimizer = torch.optim.Adamax(net.parameters(), lr=4e-3)
    history: list[float] = []
    for _ in range(steps):
        picture = spectrum(strokes(32, generator)[0])
        code = squeeze(picture)
        error = (widen(code) - picture.flatten(1)).square().sum(1).mean()
        loss = error + 0.1 * code.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(error.item())
    return {"loss": mean_of(history[-8:])}
