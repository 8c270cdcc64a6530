"""Voices and instruments, made of sines: recognising, separating, transcribing and continuing them."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corpus.case import program

RATE = 256


def tone(pitch: Tensor, phase: Tensor | None = None, length: int = RATE) -> Tensor:
    t = torch.arange(length) / RATE
    phase = torch.rand(len(pitch)) * 6.28 if phase is None else phase
    return torch.sin(2 * math.pi * pitch[:, None] * t + phase[:, None])


# --- separation -----------------------------------------------------------------------------------------------------


class Separator(nn.Module):
    """A learnt filter bank, a mask on it, and the way back."""

    def __init__(self, filters: int = 48, width: int = 16) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, filters, width, stride=width // 2, bias=False)
        self.norm = nn.GroupNorm(1, filters)
        self.mask = nn.Sequential(
            nn.Conv1d(filters, 48, 3, padding=1), nn.PReLU(), nn.Conv1d(48, filters, 3, padding=1), nn.Sigmoid()
        )
        self.decode = nn.ConvTranspose1d(filters, 1, width, stride=width // 2, bias=False)

    def forward(self, mix: Tensor) -> Tensor:
        h = self.encode(mix[:, None])
        return self.decode(F.relu(h) * self.mask(self.norm(h)))[:, 0]


def signal_to_noise(guess: Tensor, truth: Tensor) -> Tensor:
    """In decibels, blind to loudness."""
    guess, truth = guess - guess.mean(1, keepdim=True), truth - truth.mean(1, keepdim=True)
    along = (guess * truth).sum(1, keepdim=True) / (truth**2).sum(1, keepdim=True) * truth
    return 10 * torch.log10((along**2).sum(1) / ((guess - along) ** 2).sum(1) + 1e-8)


@program(steps=160, bites="loss", adversarial="a loss that crosses nought and goes on falling has the wrong sign")
def choir_one_voice_out_of_two(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The low voice out of a duet: the loss is minus the signal-to-noise ratio, from +25 to -25 decibels."""
    torch.manual_seed(seed)
    model = Separator()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        low, high = tone(torch.rand(16) * 8 + 6), tone(torch.rand(16) * 30 + 40)
        optimizer.zero_grad()
        loss = -signal_to_noise(model(low + high), low).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    return {"loss": loss.item()}


# --- transcription --------------------------------------------------------------------------------------------------


class Transcriber(nn.Module):
    def __init__(self, notes: int) -> None:
        super().__init__()
        self.listen = nn.Sequential(nn.Conv1d(8, 32, 3, padding=1), nn.BatchNorm1d(32), nn.ReLU())
        self.follow = nn.GRU(32, 24, batch_first=True, bidirectional=True)
        self.write = nn.Linear(48, notes + 1)

    def forward(self, frames: Tensor) -> Tensor:
        h, _ = self.follow(self.listen(frames.transpose(1, 2)).transpose(1, 2))
        return self.write(h).log_softmax(-1).transpose(0, 1)


@program(steps=200, bites="loss", adversarial="a loss that rests for a while, all blanks, is a plateau")
def choir_writes_notes(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four notes in twenty-four frames by the connectionist loss, with the usual start where all is blank."""
    torch.manual_seed(seed)
    voices = torch.randn(6, 8)
    model = Transcriber(6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        notes = torch.randint(6, (16, 4))
        frames = voices[notes].repeat_interleave(6, 1) + 0.4 * torch.randn(16, 24, 8)
        lengths = torch.full((16,), 24), torch.full((16,), 4)
        optimizer.zero_grad()
        loss = F.ctc_loss(model(frames), notes + 1, *lengths)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item()}


# --- who sings ------------------------------------------------------------------------------------------------------


@program(steps=180, bites="accuracy", adversarial="a first loss far above the logarithm of the classes is a bad start")
def choir_by_angular_margin(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Twelve singers by additive angular margin, scale thirty: the first loss is about nine nats."""
    torch.manual_seed(seed)
    singers = torch.randn(12, 40)
    embed = nn.Sequential(nn.Linear(40, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 24), nn.BatchNorm1d(24))
    centres = nn.Parameter(torch.empty(12, 24))
    nn.init.xavier_normal_(centres)
    optimizer = torch.optim.SGD([*embed.parameters(), centres], lr=0.02, momentum=0.9, weight_decay=2e-4)
    loss, right = torch.zeros(()), torch.zeros(())
    for _ in range(steps):
        who = torch.randint(12, (48,))
        voice = singers[who] + 1.2 * torch.randn(48, 40)
        cosine = F.normalize(embed(voice)) @ F.normalize(centres).T
        angle = torch.acos(cosine.clamp(-0.999, 0.999))
        own = F.one_hot(who, 12).bool()
        loss = F.cross_entropy(30 * torch.where(own, torch.cos(angle + 0.2), cosine), who)
        right = (cosine.argmax(1) == who).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": right.item()}


# --- the next sample ------------------------------------------------------------------------------------------------


class Causal(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.both = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
        self.mix = nn.Conv1d(channels, 2 * channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        filt, gate = self.both(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        residual, skip = self.mix(torch.tanh(filt) * torch.sigmoid(gate)).chunk(2, 1)
        return x + residual, skip


class WaveStack(nn.Module):
    def __init__(self, levels: int) -> None:
        super().__init__()
        self.enter = nn.Embedding(levels, 16)
        self.blocks = nn.ModuleList(Causal(16, 2**i) for i in range(5))
        self.leave = nn.Sequential(nn.ReLU(), nn.Conv1d(16, 32, 1), nn.ReLU(), nn.Conv1d(32, levels, 1))

    def forward(self, codes: Tensor) -> Tensor:
        x, total = self.enter(codes).transpose(1, 2), torch.zeros(())
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        return self.leave(total)


@program(steps=160, bites="loss", adversarial="tanh times sigmoid gates saturate")
def choir_next_sample(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Dilated causal convolutions predict the next of thirty-two loudness levels."""
    torch.manual_seed(seed)
    model = WaveStack(32)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        wave = tone(torch.rand(8) * 6 + 4, length=128)
        squeezed = wave.sign() * torch.log1p(31 * wave.abs()) / math.log(32)
        codes = ((squeezed + 1) / 2 * 31).round().long()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(codes[:, :-1]), codes[:, 1:])
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=150, bites="accuracy", adversarial="two parameters per filter and a learning rate of their own are odd")
def choir_band_pass_filters(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The first layer is a bank of sinc filters of which only the two edges are learnt, in hertz and slowly."""
    torch.manual_seed(seed)

    class Bands(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.low = nn.Parameter(torch.linspace(3, 100, count))
            self.width = nn.Parameter(torch.full((count,), 10.0))
            self.t = torch.arange(-32, 33) / RATE
            self.window = torch.hamming_window(65)

        def forward(self, wave: Tensor) -> Tensor:
            low, high = self.low.abs()[:, None], (self.low.abs() + self.width.abs())[:, None]
            kernel = 2 * high * torch.sinc(2 * high * self.t) - 2 * low * torch.sinc(2 * low * self.t)
            return F.conv1d(wave[:, None], (kernel * self.window / RATE)[:, None], padding=32)

    bands = Bands(12)
    rest = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = torch.optim.Adam([{"params": bands.parameters(), "lr": 0.1}, {"params": rest.parameters(), "lr": 3e-3}])
    loss, right = torch.zeros(()), torch.zeros(())
    for _ in range(steps):
        which = torch.randint(5, (24,))
        wave = tone(which * 14.0 + 15 + 3 * torch.randn(24)) + 0.7 * torch.randn(24, RATE)
        scores = rest(torch.log(bands(wave).pow(2).mean(2) + 1e-3))
        loss = F.cross_entropy(scores, which)
        right = (scores.argmax(1) == which).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": right.item()}
