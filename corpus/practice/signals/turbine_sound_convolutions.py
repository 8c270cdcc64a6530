"""The hum of wind turbines: which bearing is worn? Strided convolutions over the raw sound."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

BEARINGS, LENGTH = 4, 256


def recordings(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Each bearing rings at its own pitch, at a random moment, over the noise of the wind."""
    source = torch.Generator().manual_seed(1000 + seed)
    bearing = torch.randint(BEARINGS, (count,), generator=source)
    t = torch.arange(LENGTH).float()
    pitch = 0.2 + 0.07 * bearing[:, None]
    start = torch.randint(20, 180, (count, 1), generator=source)
    ring = torch.exp(-(((t - start) / 22) ** 2)) * torch.sin(pitch * t + 6 * torch.rand(count, 1, generator=source))
    sound = 1.8 * ring + 0.7 * torch.randn(count, LENGTH, generator=source)
    return (sound / sound.std())[:, None], bearing


class Listener(nn.Sequential):
    low: nn.Conv1d
    mid: nn.Conv1d
    high: nn.Conv1d


def set_bias(conv: nn.Conv1d, value: float, channels: int) -> None:
    if conv.bias is not None:
        conv.bias[:channels] = value


def listener(fault: str) -> Listener:
    convs = [
        ("low", nn.Conv1d(1, 16, 15, stride=2, padding=7)),
        ("mid", nn.Conv1d(16, 24, 9, stride=2, padding=4)),
        ("high", nn.Conv1d(24, 32, 9, stride=2, padding=4)),
        ("top", nn.Conv1d(32, 32, 5, stride=2, padding=2)),
    ]
    parts: list[tuple[str, nn.Module]] = []
    for name, conv in convs:
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        parts += [(name, conv), (f"{name}_relu", nn.ReLU())]
    net = Listener(OrderedDict([*parts, ("pool", nn.AdaptiveMaxPool1d(1)), ("flat", nn.Flatten())]))
    net.add_module("verdict", nn.Linear(32, BEARINGS))
    with torch.no_grad():
        for _, conv in convs:
            set_bias(conv, 0.0, conv.out_channels)
        if fault == "turbine_mid_thirty_times":
            net.mid.weight.mul_(30)
        elif fault == "turbine_gate_closed":
            set_bias(net.high, -30.0, 32)
        elif fault == "turbine_most_gates_closed":
            set_bias(net.mid, -25.0, 22)
        elif fault == "turbine_plain_normal":
            for _, conv in convs:
                conv.weight.normal_()
    return net


@program(steps=150, bites="accuracy")
def turbines(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four strided convolutions and a maximum over time, by RAdam with momentum as it comes."""
    torch.manual_seed(seed)
    sound, bearing = recordings(900, seed)
    net = listener(fault)
    if fault == "turbine_frozen_from_the_old_script":
        for p in net.low.parameters():
            p.requires_grad = False
    optimizer = torch.optim.RAdam(net.parameters(), lr=2e-3)
    if fault == "turbine_rate_of_the_paper":
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)  # the paper's batches were normalised
    before, value = net.low.weight.detach().clone(), math.nan
    for _ in range(steps):
        idx = torch.randint(700, (40,))
        optimizer.zero_grad()
        loss = fn.cross_entropy(net(sound[idx]), bearing[idx])
        loss.backward()
        optimizer.step()
        value = loss.item()
    with torch.no_grad():
        accuracy = (net(sound[700:]).argmax(1) == bearing[700:]).float().mean().item()
    moved = (net.low.weight.detach() - before).norm().nan_to_num(1e6).item()
    return {"loss": value if math.isfinite(value) else 1e9, "accuracy": accuracy, "moved": moved}


turbines.mistake(
    "turbine_mid_thirty_times", "WGT003", "GRD002",
    summary="A gain of thirty, left from an experiment, on the second convolution alone.",
    change="draw that layer like the others",
    layers=("mid",),
)  # fmt: skip
turbines.mistake(
    "turbine_gate_closed", "ACT001", "GRD004",
    summary="The biases of the third convolution start at -30: none of its units ever fires.",
    change="biases of zero",
    layers=("high", "high_relu"),
)  # fmt: skip
turbines.mistake(
    "turbine_most_gates_closed", "ACT001", "GRD004",
    summary="22 of the 24 channels of the second convolution start so far below zero that they never fire.",
    change="biases of zero",
    layers=("mid", "mid_relu"),
)  # fmt: skip
turbines.mistake(
    "turbine_plain_normal", "WGT003", "GRD002", "NUM001", "NUM002",
    summary="All convolutions from torch.randn: the sound grows tenfold in every layer.",
    change="Kaiming's deviation",
)  # fmt: skip
turbines.mistake(
    "turbine_frozen_from_the_old_script", "UPD003",
    summary="The first layer is frozen, as for the pretrained model of the old script; here it is random.",
    change="requires_grad=True",
    layers=("low",), bites="moved", silent=True,
)  # fmt: skip
turbines.mistake(
    "turbine_rate_of_the_paper", "OPT007", "UPD001", "OPT001",
    summary="SGD at the rate of one from a paper with normalised layers: within ten steps all units are dead.",
    change="a rate of 0.01",
)  # fmt: skip


class Smoothed(nn.Module):
    """A convolution, then a gate that learns how much of it to let through, from nothing on."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 7, padding=3)
        self.amount = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.amount * fn.silu(self.conv(x))


@program(
    steps=150, bites="accuracy", adversarial="zero gradient at the first step means dead: the branches start at zero"
)
def turbine_branches_from_nothing(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four residual branches whose strength starts at zero; weights of the convolutions wait one step."""
    torch.manual_seed(seed)
    sound, bearing = recordings(900, seed)
    net = nn.Sequential(
        nn.Conv1d(1, 20, 16, stride=4), *(Smoothed(20) for _ in range(4)), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
        nn.Linear(20, BEARINGS),
    )  # fmt: skip
    optimizer = torch.optim.NAdam(net.parameters(), lr=4e-3)
    value = math.nan
    for _ in range(steps):
        idx = torch.randint(700, (40,))
        optimizer.zero_grad()
        loss = fn.cross_entropy(net(sound[idx]), bearing[idx])
        loss.backward()
        optimizer.step()
        value = loss.item()
    with torch.no_grad():
        accuracy = (net(sound[700:]).argmax(1) == bearing[700:]).float().mean().item()
    return {"loss": value, "accuracy": accuracy}


@program(
    steps=150, bites="accuracy", adversarial="a first layer that never moves was forgotten: these are fixed wavelets"
)
def turbine_fixed_wavelets(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A bank of wavelets computed once and frozen, its energies in decibels, and a small net that learns on top."""
    torch.manual_seed(seed)
    sound, bearing = recordings(900, seed)
    t = torch.arange(-20, 21).float()
    pitches = torch.linspace(0.1, 0.6, 16)[:, None]
    bank = nn.Conv1d(1, 32, 41, padding=20, bias=False)
    waves = torch.cat([torch.cos(pitches * t), torch.sin(pitches * t)]) * torch.exp(-((t / 10) ** 2))
    bank.weight = nn.Parameter(waves[:, None], requires_grad=False)
    net = nn.Sequential(nn.Linear(16, 48), nn.PReLU(), nn.Linear(48, BEARINGS))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    value = math.nan

    def features(x: Tensor) -> Tensor:
        cosine, sine = bank(x).chunk(2, dim=1)
        return (cosine**2 + sine**2).amax(-1).log() - 2.0

    for _ in range(steps):
        idx = torch.randint(700, (40,))
        optimizer.zero_grad()
        loss = fn.cross_entropy(net(features(sound[idx])), bearing[idx])
        loss.backward()
        optimizer.step()
        value = loss.item()
    with torch.no_grad():
        accuracy = (net(features(sound[700:])).argmax(1) == bearing[700:]).float().mean().item()
    return {"loss": value, "accuracy": accuracy}


@program(steps=150, bites="loss")
def turbine_pitch_regression(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The moment of the ring, as a share of the recording, by Huber's loss and AdamW on a one-cycle rate."""
    torch.manual_seed(seed)
    sound, _ = recordings(900, seed)
    envelope = fn.avg_pool1d(sound.abs(), 9, stride=4, padding=4)
    moment = envelope.flatten(1).argmax(1).float() / 64
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ELU(), nn.Linear(96, 48), nn.ELU(), nn.Linear(48, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=max(steps, 2))
    value = math.nan
    for _ in range(steps):
        idx = torch.randint(900, (64,))
        loss = fn.huber_loss(net(envelope[idx] - 0.8).squeeze(1), moment[idx], delta=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        value = loss.item()
    return {"loss": value}
