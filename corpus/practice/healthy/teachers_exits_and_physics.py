"""Healthy trainings whose loop is not the usual one: teachers, exits, thawing, physics, sines."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program


def digits() -> tuple[Tensor, Tensor]:
    pictures, labels = load_digits(return_X_y=True)
    return torch.tensor(pictures, dtype=torch.float32) / 8 - 1, torch.tensor(labels)


@program(steps=150, adversarial="a second network that gets no gradient is forgotten")
def a_teacher_that_follows(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Few labels and a mean teacher: an average of the student, never in an optimizer, guides it on the rest."""
    torch.manual_seed(seed)
    x, y = digits()
    student = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    for _ in range(steps):
        known, other = torch.randint(200, (32,)), torch.randint(200, 1400, (32,))
        target = teacher(x[other]).softmax(1)
        guess = student(x[other] + 0.1 * torch.randn(32, 64)).softmax(1)
        loss = F.cross_entropy(student(x[known]), y[known]) + (guess - target).pow(2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters()):
                slow.lerp_(fast, 0.05)
    return {"loss": F.cross_entropy(teacher(x[1400:]), y[1400:]).item()}


class ManyExits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3))
        self.exits = nn.ModuleList(nn.Linear(64, 10) for _ in range(3))

    def forward(self, x: Tensor, leave_at: int) -> Tensor:
        for stage in self.stages[: leave_at + 1]:
            x = stage(x)
        return self.exits[leave_at](x)


@program(steps=160, adversarial="a layer whose gradient is missing in most steps is cut off")
def leaves_by_any_exit(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three exits; each step trains one of them, drawn at random, and what comes before it."""
    torch.manual_seed(seed)
    x, y = digits()
    model = ManyExits()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        rows, leave_at = torch.randint(1400, (48,)), int(torch.randint(3, ()))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows], leave_at), y[rows]).backward()
        optimizer.step()
    return {f"loss{at or ''}": F.cross_entropy(model(x[1400:], at), y[1400:]).item() for at in range(3)}


@program(steps=150, adversarial="weights that stand still for fifty steps were left out of the optimizer")
def thaws_from_the_top(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Gradual unfreezing on a front of principal directions: the head first, the middle at 50, the front at 100."""
    torch.manual_seed(seed)
    x, y = digits()
    front, middle, head = nn.Linear(64, 48), nn.Linear(48, 48), nn.Linear(48, 10)
    _, sizes, directions = torch.linalg.svd(x[:1400] - x[:1400].mean(0), full_matrices=False)
    front.weight.data = directions[:48] / (sizes[:48, None] / math.sqrt(1400)).clamp(min=0.5)
    front.bias.data = -front.weight.data @ x[:1400].mean(0)
    nn.init.orthogonal_(middle.weight)
    model = nn.Sequential(front, nn.ReLU(), middle, nn.ReLU(), head)
    for layer in (front, middle):
        layer.requires_grad_(False)
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
    for step in range(steps):
        if step in (50, 100):
            layer = middle if step == 50 else front
            layer.requires_grad_(True)
            optimizer.add_param_group({"params": list(layer.parameters()), "lr": 1e-3})
        rows = torch.randint(1400, (48,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return {"loss": F.cross_entropy(model(x[1400:]), y[1400:]).item()}


class Sine(nn.Module):
    def __init__(self, inputs: int, outputs: int, first: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        bound = 1 / inputs if first else math.sqrt(6 / inputs) / 12
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(12 * self.linear(x))


@program(steps=200, adversarial="outputs pressed against minus one and one are saturated")
def a_picture_as_sines(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A network of sines learns one picture as a function of place."""
    torch.manual_seed(seed)
    axis = torch.linspace(-1, 1, 24)
    places = torch.cartesian_prod(axis, axis)
    light = torch.sin(5 * places[:, :1]) * torch.cos(4 * places[:, 1:]) + (places.norm(dim=1, keepdim=True) < 0.5)
    net = nn.Sequential(Sine(2, 48, first=True), Sine(48, 48), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(steps):
        rows = torch.randint(len(places), (192,))
        loss = F.mse_loss(net(places[rows]), light[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": F.mse_loss(net(places), light).item()}


@program(steps=200)
def a_swing_that_slows_down(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The equation of a damped swing as a loss: second derivatives of the network by autograd."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        t = torch.rand(64, 1, requires_grad=True) * 2
        # The start is built in: the swing begins at one and at rest.
        angle = 1 + t**2 * net(t)
        (speed,) = torch.autograd.grad(angle.sum(), t, create_graph=True)
        (change,) = torch.autograd.grad(speed.sum(), t, create_graph=True)
        loss = (change + 0.4 * speed + 2 * angle).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=90, adversarial="a gradient that is not cleared before the next backward pass is a mistake")
def four_pieces_make_a_step(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Gradient accumulation done right: four pieces, each divided by four, then one step and one clearing."""
    torch.manual_seed(seed)
    x, y = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for piece in range(4 * steps):
        rows = torch.randint(1400, (16,))
        (F.cross_entropy(model(x[rows]), y[rows]) / 4).backward()
        if piece % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return {"loss": F.cross_entropy(model(x[1400:]), y[1400:]).item()}


@program(steps=150)
def two_views_of_a_digit(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Contrastive learning: two noisy views of a digit should find each other in the batch."""
    torch.manual_seed(seed)
    x, _ = digits()
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 24))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = x[torch.randint(1400, (64,))]
        one, two = (F.normalize(net(batch + 0.4 * torch.randn_like(batch)), dim=1) for _ in range(2))
        loss = F.cross_entropy(one @ two.T / 0.2, torch.arange(64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="one layer that gets the gradients of ten places explodes")
def one_layer_ten_times(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same residual layer is applied ten times, as in a discretised differential equation."""
    torch.manual_seed(seed)
    x, y = digits()
    enter, flow, leave = (
        nn.Linear(64, 48),
        nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48), nn.Tanh()),
        nn.Linear(48, 10),
    )
    model = nn.ModuleDict({"enter": enter, "flow": flow, "leave": leave})

    def scores(batch: Tensor) -> Tensor:
        state = enter(batch)
        for _ in range(10):
            state = state + 0.1 * flow(state)
        return leave(state)

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(1400, (48,))
        optimizer.zero_grad()
        F.cross_entropy(scores(x[rows]), y[rows]).backward()
        optimizer.step()
    return {"loss": F.cross_entropy(scores(x[1400:]), y[1400:]).item()}


@program(steps=150)
def sets_of_any_order(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Deep sets: how far apart are the extremes of a set of numbers? Shared layers, a pooled sum, Adagrad."""
    torch.manual_seed(seed)
    each = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    whole = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    model = nn.ModuleDict({"each": each, "whole": whole})
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        items = torch.randn(64, 8, 1)
        h = each(items)
        pooled = torch.cat([h.mean(1), h.amax(1)], dim=1)
        loss = F.mse_loss(whole(pooled), items.amax(1) - items.amin(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
