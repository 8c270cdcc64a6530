"""Two riders, one wheel: a data-parallel training in one process, the averaging written by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn, optim

from corpus.case import program

KINDS, SAMPLES, CHANNELS = 5, 48, 3


def rides(seed: int, count: int = 600) -> tuple[Tensor, Tensor]:
    """Accelerations of a bicycle: every kind of road shakes at its own two frequencies."""
    rng = torch.Generator().manual_seed(seed + 100)
    road = torch.randint(KINDS, (count,), generator=rng)
    t = torch.arange(SAMPLES) / SAMPLES
    phase = torch.rand(count, CHANNELS, 1, generator=rng) * 6.28
    slow = torch.sin(6.28 * (2 + road.float())[:, None, None] * t + phase)
    fast = torch.sin(6.28 * (9 + 2 * road.float())[:, None, None] * t + 2 * phase)
    noise = torch.randn(count, CHANNELS, SAMPLES, generator=rng)
    return slow + 0.5 * fast + 0.9 * noise, road


def make_rider(norm: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(CHANNELS, 16, 7, padding=3),
        nn.BatchNorm1d(16) if norm else nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(16, 24, 5, padding=2),
        nn.BatchNorm1d(24) if norm else nn.GroupNorm(4, 24),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(24, KINDS),
    )


def distance(left: nn.Module, right: nn.Module) -> float:
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return sum((a.double() - b.double()).square().sum().item() for a, b in pairs) ** 0.5


class Peloton:
    """Holds the replicas, each with its own optimizer, and keeps them together."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.riders = [make_rider() for _ in range(2)]
        if fault != "peloton_starts_apart":
            self.riders[1].load_state_dict(self.riders[0].state_dict())
        self.optimizers = [optim.SGD(r.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4) for r in self.riders]

    def exchange(self, step: int) -> None:
        names = [name for name, _ in self.riders[0].named_parameters()]
        for name, ours, theirs in zip(names, *(r.parameters() for r in self.riders), strict=True):
            if self.fault == "peloton_one_tensor_alone" and name == "4.weight":
                continue
            if self.fault == "peloton_loses_the_wheel" and step >= 80 and name.startswith("9."):
                continue
            assert ours.grad is not None
            assert theirs.grad is not None
            mean = (ours.grad + theirs.grad) / 2
            ours.grad.copy_(mean)
            theirs.grad.copy_(mean)
        if self.fault != "peloton_statistics_alone":
            for ours, theirs in zip(*(r.buffers() for r in self.riders), strict=True):
                if ours.is_floating_point():
                    mean = (ours + theirs) / 2
                    ours.copy_(mean)
                    theirs.copy_(mean)


@program(steps=150, bites="apart")
def peloton(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A one-dimensional convolution net on road vibrations, two replicas that average gradients and statistics."""
    torch.manual_seed(seed)
    x, y = rides(seed)
    team = Peloton(fault)
    shards = [(x[0::2], y[0::2]), (x[1::2], y[1::2])]
    first = last = 0.0
    for step in range(steps):
        total = 0.0
        for rider, optimizer, (xs, ys) in zip(team.riders, team.optimizers, shards, strict=True):
            pick = torch.randint(len(xs), (24,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(rider(xs[pick]), ys[pick])
            loss.backward()
            total += loss.item() / 2
        team.exchange(step)
        for optimizer in team.optimizers:
            optimizer.step()
        first = total if step == 0 else first
        last = total if step == 0 else 0.9 * last + 0.1 * total
    return {"loss": last, "first": first, "apart": distance(*team.riders)}


peloton.mistake(
    "peloton_starts_apart",
    "DST001",
    summary="Nobody copies the first replica's weights to the second before the first step.",
    change="broadcast the state at the start",
    silent=True,
)
peloton.mistake(
    "peloton_one_tensor_alone",
    "DST001",
    summary="The weight of the second convolution is skipped when the gradients are averaged.",
    change="average every gradient",
    layers=("4", "0.4", "1.4"),
    silent=True,
)
peloton.mistake(
    "peloton_loses_the_wheel",
    "DST001",
    summary="From step 80 on the last bucket, the classifier's, is no longer exchanged.",
    change="exchange every bucket",
    layers=("9", "0.9", "1.9"),
    onset=80,
    silent=True,
)
peloton.mistake(
    "peloton_statistics_alone",
    "DST001",
    summary="The gradients are averaged, the running statistics of the normalisation are not.",
    change="average the buffers, too, or use SyncBatchNorm",
    layers=("1", "5", "0.1", "0.5", "1.1", "1.5"),
    silent=True,
)


@program(steps=120, adversarial="two models of the same shape that drift apart: ranks diverge")
def peloton_two_rivals(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An ensemble of two, each on its own bootstrap sample: they are meant to differ."""
    torch.manual_seed(seed)
    x, y = rides(seed)
    rivals = [make_rider(norm=False) for _ in range(2)]
    bags = [torch.randint(len(x), (400,)) for _ in rivals]
    optimizers = [optim.SGD(r.parameters(), lr=0.05, momentum=0.9, nesterov=True) for r in rivals]
    first = last = 0.0
    for step in range(steps):
        total = 0.0
        for rival, optimizer, bag in zip(rivals, optimizers, bags, strict=True):
            pick = bag[torch.randint(len(bag), (24,))]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(rival(x[pick]), y[pick])
            loss.backward()
            optimizer.step()
            total += loss.item() / 2
        first = total if step == 0 else first
        last = total if step == 0 else 0.9 * last + 0.1 * total
    return {"loss": last, "first": first, "apart": distance(*rivals)}


@program(steps=120, adversarial="a second copy of the model is never in an optimizer and has no gradients")
def peloton_shadow(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One rider trains; a shadow follows as a moving average and is only used to judge."""
    torch.manual_seed(seed)
    x, y = rides(seed)
    rider, shadow = make_rider(), make_rider()
    shadow.load_state_dict(rider.state_dict())
    shadow.requires_grad_(False).eval()
    optimizer = optim.RAdam(rider.parameters(), lr=0.02)
    first = last = 0.0
    for step in range(steps):
        pick = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(rider(x[pick]), y[pick], label_smoothing=0.05)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(shadow.state_dict().values(), rider.state_dict().values(), strict=True):
                if slow.is_floating_point():
                    slow.lerp_(fast, 0.05)
                else:
                    slow.copy_(fast)
            if step % 40 == 39:
                shadow(x[:64])
        first = loss.item() if step == 0 else first
        last = loss.item() if step == 0 else 0.9 * last + 0.1 * loss.item()
    return {"loss": last, "first": first}
