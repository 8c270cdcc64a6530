"""Waves of many heights and phases, each to be learned from a few points: learning to learn."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from corpus.case import healthy, program


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh())
        self.head = nn.Linear(40, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Waves:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, points: int = 10) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A wave's points to learn from, and its points to be tested with."""
        height, phase = torch.rand(2, generator=self.generator)
        x = torch.rand(2 * points, 1, generator=self.generator) * 6 - 3
        y = (0.5 + 1.5 * height) * torch.sin(x + phase * math.pi)
        return x[:points], y[:points], x[points:], y[points:]


Weights = dict[str, Tensor]


def adapt(net: nn.Module, weights: Weights, x: Tensor, y: Tensor, rate: float, create_graph: bool) -> Weights:
    loss = functional.mse_loss(functional_call(net, weights, (x,)), y)
    slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
    return {name: weight - rate * slope for (name, weight), slope in zip(weights.items(), slopes)}


def error_after_adapting(net: nn.Module, waves: Waves, tasks: int = 40) -> float:
    total = 0.0
    for _ in range(tasks):
        x, y, test_x, test_y = waves.draw()
        fast: Weights = {name: weight.detach().requires_grad_() for name, weight in net.named_parameters()}
        for _ in range(2):
            fast = adapt(net, fast, x, y, 0.05, False)
        with torch.no_grad():
            total += functional.mse_loss(functional_call(net, fast, (test_x,)), test_y).item()
    return min(total / tasks, 20.0) if math.isfinite(total) else 20.0


@program(steps=260, bites="error")
def wave_maml(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Model-agnostic meta-learning, through the inner step and its second derivatives."""
    torch.manual_seed(seed)
    waves = Waves(seed + 1)
    net = WaveNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.06, momentum=0.9)
    tasks = 6
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(tasks):
            x, y, test_x, test_y = waves.draw()
            fast: Weights = dict(net.named_parameters())
            if mistake == "wave_maml_copied_body":
                fast = {
                    name: weight.detach().clone().requires_grad_() if name.startswith("body") else weight
                    for name, weight in fast.items()
                }
            fast = adapt(net, fast, x, y, 0.05, True)
            loss = functional.mse_loss(functional_call(net, fast, (test_x,)), test_y)
            if mistake != "wave_maml_each_task":
                loss = loss / tasks
            loss.backward()
        optimizer.step()
    return {"error": error_after_adapting(net, Waves(1000))}


wave_maml.mistake(
    "wave_maml_copied_body",
    "GRD003",
    layers=("body",),
    summary="The inner step starts from a detached copy of the body, so no meta-gradient reaches it.",
    change="the inner step starts from the parameters themselves",
)
wave_maml.mistake(
    "wave_maml_each_task",
    "LSS004",
    "OPT007",
    "UPD001",
    summary="The losses of six tasks are added, not averaged.",
    change="each task's loss is divided by the number of tasks",
)


@healthy(steps=600, adversarial="the model that is kept is in no optimizer and sees no gradient; copies of it do")
def wave_reptile(steps: int, seed: int) -> dict[str, float]:
    """Reptile: a copy learns each task with an optimizer of its own, then the model moves towards it."""
    torch.manual_seed(seed)
    waves = Waves(seed + 1)
    net = WaveNet()
    inner = 6
    for turn in range(max(1, steps // inner)):
        learner = copy.deepcopy(net)
        optimizer = torch.optim.SGD(learner.parameters(), lr=0.05)
        x, y, more_x, more_y = waves.draw(20)
        x, y = torch.cat([x, more_x]), torch.cat([y, more_y])
        for _ in range(inner):
            loss = functional.mse_loss(learner(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        pace = 0.5 * (1 - turn * inner / steps)
        with torch.no_grad():
            for kept, found in zip(net.parameters(), learner.parameters()):
                kept.add_(found - kept, alpha=pace)
    return {"loss": error_after_adapting(net, Waves(1000))}


@healthy(steps=200, adversarial="the weights that are used are made by another network")
def wave_hypernetwork(steps: int, seed: int) -> dict[str, float]:
    """A network that looks at a wave's points and writes the weights of the network that draws the wave."""
    torch.manual_seed(seed)
    waves = Waves(seed + 1)
    sizes = [(16, 1), (16,), (1, 16), (1,)]
    count = sum(math.prod(size) for size in sizes)
    reader = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48))
    writer = nn.Linear(48, count)
    nn.init.normal_(writer.weight, std=0.02)
    nn.init.normal_(writer.bias, std=0.5)
    optimizer = torch.optim.AdamW([*reader.parameters(), *writer.parameters()], lr=3e-3)
    history: list[float] = []
    for _ in range(steps):
        loss = torch.zeros(())
        for _ in range(6):
            x, y, test_x, test_y = waves.draw()
            code = reader(torch.cat([x, y], 1)).mean(0)
            parts = torch.split(writer(code), [math.prod(size) for size in sizes])
            first, shift, second, offset = (part.view(size) for part, size in zip(parts, sizes))
            made = functional.linear(torch.tanh(functional.linear(test_x, first, shift)), second, offset)
            loss = loss + functional.mse_loss(made, test_y) / 6
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    late = history[-20:]
    return {"loss": sum(late) / len(late)}
