"""Learners of learners: MAML on sines, Reptile, and prototypes from two examples of each class."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from corpus.case import healthy, program
from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs


@dataclass(frozen=True)
class Sine:
    """One task: a sine of its own height and phase."""

    height: float
    phase: float

    @staticmethod
    def draw() -> Sine:
        return Sine(0.5 + 2 * torch.rand(()).item(), 3.1 * torch.rand(()).item())

    def points(self, count: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(count, 1) * 6 - 3
        return x, self.height * torch.sin(x + self.phase)


def sine_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))


def adapt(net: nn.Module, fast: dict[str, Tensor], task: Sine, rate: float, cut: bool = False) -> dict[str, Tensor]:
    x, y = task.points(10)
    loss = functional.mse_loss(functional_call(net, fast, (x,)), y)
    slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=not cut)
    moved = {name: weight - rate * slope for (name, weight), slope in zip(fast.items(), slopes, strict=True)}
    if cut:
        return {
            name: weight.detach().requires_grad_() for name, weight in moved.items()
        }  # at fault: fast_weights_cut_off
    return moved


@program(steps=500, bites="adapted")
def sine_maml(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """MAML: four sines for each step, two inner steps each, second-order gradients."""
    torch.manual_seed(seed)
    net = sine_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    inner_rate = 3.0 if mistake == "inner_rate_mistyped" else 0.03  # at fault: inner_rate_mistyped
    for _ in range(steps):
        optimizer.zero_grad()
        total = torch.tensor(0.0)
        for _ in range(4):
            task = Sine.draw()
            fast = dict(net.named_parameters())
            for _ in range(2):
                fast = adapt(net, fast, task, inner_rate, cut=mistake == "fast_weights_cut_off")
            x, y = task.points(10)
            total = total + functional.mse_loss(functional_call(net, fast, (x,)), y) / 4
        total.backward()
        optimizer.step()
    return {"adapted": min(adapted_error(net, inner_rate), 100.0)}


def adapted_error(net: nn.Module, rate: float) -> float:
    errors = []
    for _ in range(40):
        task = Sine.draw()
        fast = {name: weight.detach().requires_grad_() for name, weight in net.named_parameters()}
        for _ in range(2):
            fast = adapt(net, fast, task, rate)
        x, y = task.points(50)
        errors.append(functional.mse_loss(functional_call(net, fast, (x,)), y).item())
    return float(torch.tensor(errors).nan_to_num(100.0).clamp(max=100).mean())


sine_maml.mistake(
    "fast_weights_cut_off", "GRD003", layers=("0", "2", "4"),
    summary="The adapted weights are detached, so that no gradient of the outer loss reaches the network.",
    change="adapted weights keep their graph",
)  # fmt: skip
sine_maml.mistake(
    "inner_rate_mistyped", "OPT007",
    summary="The inner rate is 3 instead of 0.03: adaptation overshoots, and the outer loss never comes down.",
    change="inner rate 0.03",
)  # fmt: skip


class Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(64, 64), nn.BatchNorm1d(64)
        self.second, self.last_norm = nn.Linear(64, 32), nn.BatchNorm1d(32)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.last_norm(self.second(self.norm(self.first(pictures)).relu()))


@sick(
    "MOD002", steps=1500, bites="accuracy", layers=("norm", "last_norm"), architecture="prototypes",
    change="one forward for all the support set",
)  # fmt: skip
def support_encoded_class_by_class(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Prototypes are encoded class by class, two pictures at a time: batch normalisation makes them all alike."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=1500, noise=0.5)
    by_class = [pictures[labels == label] for label in range(10)]
    encoder = Embedder()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)

    def episode() -> tuple[Tensor, Tensor]:
        ways = torch.randperm(10)[:5].tolist()
        drawn = torch.stack([by_class[way][torch.randperm(len(by_class[way]))[:8]] for way in ways])
        support, query = drawn[:, :2], drawn[:, 2:]
        if fault:
            encoded = torch.stack([encoder(shots) for shots in support])  # at fault: support_encoded_class_by_class
        else:
            encoded = encoder(support.flatten(0, 1)).view(5, 2, -1)
        prototypes = encoded.mean(1)
        logits = -torch.cdist(encoder(query.flatten(0, 1)), prototypes)
        return logits, torch.arange(5).repeat_interleave(6)

    shares = []
    for _ in range(steps):
        logits, wanted = episode()
        loss = functional.cross_entropy(logits, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shares.append((logits.argmax(1) == wanted).float().mean().item())
    return {"accuracy": sum(shares[-50:]) / len(shares[-50:])}


@healthy(
    steps=5000, adversarial="an optimizer made anew every eight steps, weights set back and moved with no optimizer"
)
def reptile_on_sines(steps: int, seed: int) -> dict[str, float]:
    """Reptile: train a copy for eight steps with a fresh optimizer, then move a tenth of the way towards it."""
    torch.manual_seed(seed)
    net, losses = sine_net(), []
    for _ in range(max(1, steps // 8)):
        task, learner = Sine.draw(), copy.deepcopy(net)
        optimizer = torch.optim.SGD(learner.parameters(), lr=0.03)
        for _ in range(8):
            x, y = task.points(20)
            loss = functional.mse_loss(learner(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            for slow, fast in zip(net.parameters(), learner.parameters(), strict=True):
                slow += 0.1 * (fast - slow)
    return {"loss": sum(losses[-80:]) / len(losses[-80:]), "adapted": adapted_error(net, 0.03)}


@healthy(
    steps=2000, adversarial="the last layer is no parameter; a scalar parameter beside the model shares the optimizer"
)
def head_solved_in_closed_form(steps: int, seed: int) -> dict[str, float]:
    """Ridge regression on learned features: the last layer of each sine is solved, not trained."""
    torch.manual_seed(seed)
    features = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 24), nn.Tanh())
    log_ridge = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.Adam([*features.parameters(), log_ridge], lr=2e-3)
    losses = []
    for _ in range(steps):
        task = Sine.draw()
        x, y = task.points(10)
        phi = features(x)
        head = torch.linalg.solve(phi.T @ phi + log_ridge.exp() * torch.eye(24), phi.T @ y)
        x, y = task.points(20)
        loss = functional.mse_loss(features(x) @ head, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-50:]) / len(losses[-50:])}
