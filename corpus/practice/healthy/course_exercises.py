"""Exercises of an evening class: each a small training in a way that looks odd and is right."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program


def bends(count: int, g: torch.Generator, kinds: int = 5) -> tuple[Tensor, Tensor]:
    """Points on noisy arcs in ten dimensions, one arc for each kind."""
    kind = torch.randint(kinds, (count,), generator=g)
    along = 3 * torch.rand(count, 1, generator=g)
    wave = torch.arange(1, 11) * 0.35
    return torch.sin(along * wave + 1.7 * kind[:, None] * wave) + 0.1 * torch.randn(count, 10, generator=g), kind


def last(history: list[float]) -> dict[str, float]:
    mean = sum(history[-10:]) / 10
    return {"loss": min(mean, 1e6) if math.isfinite(mean) else 1e6}


@program(steps=150, adversarial="parameters that are in no optimizer have been forgotten")
def class_slow_teacher(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A student follows a teacher that is its own slow average: two views of a point, no negatives, a predictor."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    student = nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
    predict = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    teacher = copy.deepcopy(student).requires_grad_(False)
    probe = nn.Linear(16, 5)
    adam = torch.optim.Adam([*student.parameters(), *predict.parameters(), *probe.parameters()], lr=3e-3)
    history: list[float] = []
    for _ in range(steps):
        x, kind = bends(96, g)
        one, two = (x + 0.15 * torch.randn(x.shape, generator=g) for _ in range(2))
        seen = student(one)
        with torch.no_grad():
            goal = fn.normalize(teacher(two), dim=1)
        likeness = (fn.normalize(predict(seen), dim=1) * goal).sum(1).mean()
        loss = 2 - 2 * likeness + fn.cross_entropy(probe(seen.detach()), kind)
        adam.zero_grad()
        loss.backward()
        adam.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.03)
        history.append(loss.item())
    return last(history)


@program(steps=160, adversarial="a loss of exactly zero in many batches means that nothing is learnt")
def class_satisfied_margin(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Pairs under a margin: once all strangers are far enough apart a batch may have nothing left to say."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(10 + seed)
    place = nn.Sequential(nn.Linear(10, 64), nn.LeakyReLU(0.1), nn.Linear(64, 64), nn.LeakyReLU(0.1), nn.Linear(64, 8))
    centre = 1.5 * torch.randn(5, 10, generator=g)
    sgd = torch.optim.SGD(place.parameters(), lr=0.05, momentum=0.9)
    history: list[float] = []
    for _ in range(steps):
        x, kind = bends(60, g)
        spot = place(x + centre[kind])
        square = (spot[:, None] - spot[None]).square().sum(-1) + 1e-6
        same = kind[:, None] == kind[None]
        near = torch.where(same, torch.relu(square - 0.3), 0.0).sum() / same.sum()
        far = torch.where(same, 0.0, torch.relu(1.0 - square.sqrt()).square()).sum() / (~same).sum()
        loss = near + far
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        history.append(loss.item())
    return last(history)


@program(steps=140, adversarial="targets and losses in the millions are badly scaled")
def class_counts_people(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Visitors of a fair, thousands of them: Poisson's likelihood on a logarithmic output that starts at the mean."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(20 + seed)
    head = nn.Linear(48, 1)
    net = nn.Sequential(nn.Linear(10, 48), nn.GELU(), head)
    nn.init.constant_(head.bias, math.log(3000))
    rise = torch.randn(10, generator=g) / 7
    adam = torch.optim.AdamW(net.parameters(), lr=3e-3)
    history: list[float] = []
    for _ in range(steps):
        x = torch.randn(80, 10, generator=g)
        people = torch.poisson(3000 * (x @ rise + 0.3 * (x[:, 0] * x[:, 1]).tanh()).exp(), generator=g)
        log_rate = net(x).squeeze(1)
        deviance = log_rate.exp() - people * log_rate + torch.xlogy(people, people) - people
        loss = deviance.mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        history.append(loss.item())
    return last(history)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, voltage):
        ctx.save_for_backward(voltage)
        return (voltage > 0).float()

    @staticmethod
    def backward(ctx, *grads):
        (voltage,) = ctx.saved_tensors
        return grads[0] / (1 + 4 * voltage.abs()).square()


class SpikingNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.current = nn.Linear(10, 80)
        self.again = nn.Linear(80, 80, bias=False)
        self.read = nn.Linear(80, 5)
        nn.init.orthogonal_(self.again.weight, gain=0.5)

    def forward(self, x: Tensor) -> Tensor:
        voltage = torch.zeros(len(x), 80)
        fired = torch.zeros(len(x), 80)
        total = torch.zeros(len(x), 80)
        drive = 2 * self.current(x)
        for _ in range(8):
            voltage = 0.7 * voltage * (1 - fired) + drive + self.again(fired)
            fired = Spike.apply(voltage - 1.0)
            total = total + fired
        return self.read(total / 8)


@program(steps=130, adversarial="units that are almost always zero are dead")
def class_of_spikes(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Neurons that fire or do not, for eight ticks, with a smooth gradient in place of the step's."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(30 + seed)
    net = SpikingNet()
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)
    history: list[float] = []
    for _ in range(steps):
        x, kind = bends(64, g)
        loss = fn.cross_entropy(net(x), kind)
        adam.zero_grad()
        loss.backward()
        adam.step()
        history.append(loss.item())
    return last(history)


@program(steps=150)
def class_parallel_masses(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three numbers of a damped oscillator from its recorded swing, by descent through the integrator."""
    torch.manual_seed(seed)
    truth = torch.tensor([1.4, 0.25, 0.6]) + 0.1 * torch.rand(3)

    class Oscillator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.law = nn.Parameter(torch.tensor([1.0, 0.1, 0.2]))

        def forward(self, law: Tensor | None = None) -> Tensor:
            spring, damping, push = self.law if law is None else law
            place, speed, path = torch.tensor(1.0), torch.tensor(0.0), []
            for _ in range(40):
                speed = speed + 0.1 * (push - spring * place - damping * speed)
                place = place + 0.1 * speed
                path.append(place)
            return torch.stack(path)

    oscillator = Oscillator()
    swing = oscillator(truth).detach() + 0.01 * torch.randn(40)
    adam = torch.optim.Adam(oscillator.parameters(), lr=0.02)
    history: list[float] = []
    for _ in range(steps):
        loss = (oscillator() - swing).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        history.append(loss.item())
    return last(history)


@program(steps=140, adversarial="a gradient that is clipped in every step is over-clipped")
def class_always_clipped(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adafactor's relative steps behind a clip at a twentieth: the clip bites every time and changes nothing."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(50 + seed)
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 5))
    factor = torch.optim.Adafactor(net.parameters(), lr=0.05)
    history: list[float] = []
    for _ in range(steps):
        x, kind = bends(64, g)
        loss = fn.cross_entropy(net(x), kind)
        factor.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        factor.step()
        history.append(loss.item())
    return last(history)


@program(steps=150)
def class_rings_and_graphs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A mixer over ten columns treated as tokens, SGD with Nesterov's momentum and one cycle of the rate."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(70 + seed)
    lift, across, along, out = nn.Linear(1, 24), nn.Linear(10, 10), nn.Linear(24, 24), nn.Linear(240, 5)
    net = nn.ModuleDict({"lift": lift, "across": across, "along": along, "out": out})
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(sgd, max_lr=0.08, total_steps=160)
    history: list[float] = []
    for _ in range(steps):
        x, kind = bends(64, g)
        h = lift(x[:, :, None])
        h = h + across(fn.gelu(h).transpose(1, 2)).transpose(1, 2)
        h = h + along(fn.gelu(h))
        loss = fn.cross_entropy(out(h.flatten(1)), kind)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        cycle.step()
        history.append(loss.item())
    return last(history)
