"""Songs as sums of chirps: which bird sings, and which one sang first?"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

BIRDS, SAMPLES = 4, 480


def songs(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Raw audio: each bird has its own pitch and its own slide, with noise from the wood."""
    bird = torch.randint(BIRDS, (n,), generator=generator)
    time = torch.arange(SAMPLES) / SAMPLES
    pitch = torch.tensor([40.0, 55.0, 40.0, 55.0])[bird, None] + 2 * torch.randn(n, 1, generator=generator)
    slide = torch.tensor([15.0, -15.0, -15.0, 15.0])[bird, None]
    phase = torch.rand(n, 1, generator=generator) * 2 * math.pi
    wave = torch.sin(2 * math.pi * (pitch * time + slide * time**2) + phase)
    return wave + 0.3 * torch.randn(n, SAMPLES, generator=generator), bird


class SongNet(nn.Module):
    """A learned filter bank, a recurrent layer over its frames, a score per bird."""

    def __init__(self, relu: bool = False, cut: bool = False) -> None:
        super().__init__()
        self.filters = nn.Conv1d(1, 16, kernel_size=48, stride=24)
        self.norm = nn.LayerNorm(16)
        self.rnn: nn.RNN | nn.GRU
        self.rnn = nn.RNN(16, 32, nonlinearity="relu", batch_first=True) if relu else nn.GRU(16, 32, batch_first=True)
        self.scores = nn.Linear(32, BIRDS)
        self.cut = cut

    def forward(self, audio: Tensor) -> Tensor:
        energy = self.filters(audio.unsqueeze(1)).pow(2).transpose(1, 2)
        if self.cut:
            energy = energy.detach()
        frames, _ = self.rnn(self.norm(torch.log(energy + 1e-2)))
        return self.scores(frames.mean(1))


@program(steps=150, bites="accuracy")
def bird_calls(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A learned filter bank and a GRU on raw audio; Adam, clipped gradients."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 1)
    audio, bird = songs(600, g)
    test_audio, test_bird = songs(200, g)
    net = SongNet(relu=fault == "rectified_memory_that_grows", cut=fault == "filter_bank_detached")
    if fault == "rectified_memory_that_grows":
        nn.init.normal_(dict(net.rnn.named_parameters())["weight_hh_l0"], std=1.0)
    started = net.filters.weight.detach().clone()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(steps):
        pick = torch.randint(len(audio), (24,), generator=g)
        logits = net(audio[pick])
        loss = nn.functional.cross_entropy(logits, bird[pick])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    with torch.no_grad():
        accuracy = (net(test_audio).argmax(1) == test_bird).float().mean().item()
    return {"accuracy": accuracy, "filters_moved": (net.filters.weight - started).norm().item()}


bird_calls.mistake(
    "rectified_memory_that_grows",
    "WGT003", "GRD002", "NUM004", "NUM001", "NUM002", "OPT001",
    summary="A recurrent layer with ReLU and recurrent weights of width one: the state grows at every frame.",
    change="identity or orthogonal initialisation, or a GRU",
    layers=("rnn",),
)  # fmt: skip
bird_calls.mistake(
    "filter_bank_detached",
    "GRD003", "UPD003",
    summary="The energies are detached, as in the script that plotted them: the filter bank gets no gradient.",
    change="remove detach()",
    layers=("filters",),
    bites="filters_moved",
    silent=True,
)  # fmt: skip


def dawn(n: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Frames of a morning: who sings in the first three? The rest is wind."""
    bird = torch.randint(BIRDS, (n,), generator=generator)
    frames = 0.1 * torch.randn(n, length, 6, generator=generator)
    frames[:, :3, :BIRDS] += 2 * nn.functional.one_hot(bird, BIRDS).unsqueeze(1)
    return frames, bird


class FirstSinger(nn.Module):
    def __init__(self, keep: float) -> None:
        super().__init__()
        self.memory = nn.RNN(6, 40, batch_first=True)
        self.who = nn.Linear(40, BIRDS)
        for name, parameter in self.memory.named_parameters():
            if name.startswith("weight_hh"):
                nn.init.orthogonal_(parameter, gain=keep)
            elif name.startswith("weight_ih"):
                nn.init.normal_(parameter, std=0.1)
            else:
                nn.init.zeros_(parameter)

    def forward(self, frames: Tensor) -> Tensor:
        _, last = self.memory(frames)
        return self.who(last[-1])


@program(steps=180, bites="accuracy")
def first_singer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A tanh recurrent network with orthogonal memory recalls what came thirty frames ago."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = FirstSinger(keep=0.3 if fault == "memory_that_fades" else 1.0)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(steps):
        frames, bird = dawn(32, 30, g)
        loss = nn.functional.cross_entropy(net(frames), bird)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    frames, bird = dawn(300, 30, g)
    with torch.no_grad():
        return {"accuracy": (net(frames).argmax(1) == bird).float().mean().item()}


first_singer.mistake(
    "memory_that_fades",
    "GRD001", "WGT003",
    summary="The recurrent weights start at a third of an orthogonal matrix: after thirty frames nothing is left.",
    change="orthogonal recurrent weights, or a GRU",
    layers=("memory",),
)  # fmt: skip
