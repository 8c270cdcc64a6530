"""Schedules, optimizers and loops that people use and that look odd from outside."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from corpus.case import healthy
from corpus.data import digits
from undertow.demos.data import curves, glyphs, share_correct
from undertow.demos.models import perceptron


def _with_schedule(
    steps: int, seed: int, rate: float, make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]
) -> dict[str, float]:
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = perceptron(64, 64, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    schedule = make(optimizer)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=200, architecture="perceptron", adversarial="a learning rate that leaps up is a fault")
def cyclic_rate(steps: int, seed: int) -> dict[str, float]:
    """The learning rate goes up and down by a factor of fifty, every forty steps."""
    return _with_schedule(
        steps, seed, 0.002, lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.002, 0.1, 20, cycle_momentum=False)
    )


@healthy(steps=200, architecture="perceptron", adversarial="a rate that falls to nothing, or leaps from it, is a fault")
def warm_restarts(steps: int, seed: int) -> dict[str, float]:
    """Cosine decay to zero with warm restarts."""
    return _with_schedule(
        steps, seed, 0.1, lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 40, eta_min=1e-5)
    )


@healthy(steps=150, architecture="perceptron", adversarial="updates that become tiny are a fault")
def one_cycle_to_nothing(steps: int, seed: int) -> dict[str, float]:
    """One cycle that ends at a ten-thousandth of its peak, when all is learned."""
    return _with_schedule(
        steps, seed, 0.01, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.15, total_steps=steps + 1)
    )


class Lion(torch.optim.Optimizer):
    """Sign of the momentum: every element moves by the learning rate, up or down."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                parameter.sub_(group["lr"] * (0.9 * momentum + 0.1 * parameter.grad).sign())
                momentum.lerp_(parameter.grad, 0.01)


@healthy(steps=150, architecture="perceptron", adversarial="updates of one size are an optimizer without memory")
def lion(steps: int, seed: int) -> dict[str, float]:
    """A home-made optimizer that follows the sign of its momentum."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = perceptron(64, 64, 32, 10)
    optimizer = Lion(list(model.parameters()), lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=120, architecture="residual", adversarial="batch norm in evaluation mode while training is a fault")
def frozen_batch_norm(steps: int, seed: int) -> dict[str, float]:
    """Fine-tuning with batch norm held in evaluation mode: its statistics come from the pretraining just before."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed, noise=0.5)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip
    model.train()
    with torch.no_grad():  # stands for the statistics that come with a checkpoint
        for _ in range(40):
            model(inputs[torch.randint(len(inputs), (64,))])
    norms = [module for module in model if isinstance(module, nn.BatchNorm1d)]
    for norm in norms:
        norm.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        model.train()
        for norm in norms:
            norm.eval()
        batch = torch.randint(len(inputs), (16,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=120, architecture="perceptron", adversarial="clipping at every step is over-clipping")
def clipped_every_step(steps: int, seed: int) -> dict[str, float]:
    """The gradient norm is brought down to 0.1 in every step, and Adam brings it up again."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = perceptron(64, 64, 32, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch], reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return {"loss": loss.item() / 64, "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=150, architecture="perceptron", adversarial="labels that hardly vary within a batch are not shuffled")
def rare_class(steps: int, seed: int) -> dict[str, float]:
    """One class in twenty, mixed well: most batches hold nearly one label only."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed, count=2048)
    keep = (labels != 3) | (torch.arange(len(labels)) % 2 == 0)
    inputs, targets = inputs[keep], (labels[keep] == 3).long()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)
    model = perceptron(64, 32, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss, step = torch.tensor(0.0), 0
    while step < steps:
        for pictures, answers in loader:
            loss = functional.cross_entropy(model(pictures), answers, weight=torch.tensor([1.0, 5.0]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, targets)}


class EarlyExits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3))
        self.exits = nn.ModuleList(nn.Linear(64, 10) for _ in range(3))

    def forward(self, x: Tensor, depth: int) -> Tensor:
        for stage in list(self.stages)[: depth + 1]:
            x = stage(x)
        return self.exits[depth](x)


@healthy(steps=150, architecture="perceptron", adversarial="a layer without gradient in most steps is cut off")
def early_exits(steps: int, seed: int) -> dict[str, float]:
    """A network with three exits; each step trains one of them, and what lies behind it rests."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = EarlyExits()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch], int(torch.randint(3, ()))), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=120, architecture="perceptron", adversarial="a soft target or a soft loss input is a probability")
def distillation(steps: int, seed: int) -> dict[str, float]:
    """A student learns the softened probabilities of a fixed teacher by Kullback-Leibler divergence."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    teacher, student = perceptron(64, 128, 10), perceptron(64, 32, 10)
    teacher_optimizer = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    for _ in range(40):
        teacher_optimizer.zero_grad()
        functional.cross_entropy(teacher(inputs), labels).backward()
        teacher_optimizer.step()
    teacher.requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        pictures = inputs[torch.randint(len(inputs), (64,))]
        wanted = (teacher(pictures) / 2).softmax(-1)
        loss = 4 * functional.kl_div((student(pictures) / 2).log_softmax(-1), wanted, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(student, inputs, labels)}


@healthy(steps=30, architecture="perceptron", adversarial="a loss that has not fallen far after thirty steps is stuck")
def short_and_slow(steps: int, seed: int) -> dict[str, float]:
    """Thirty careful steps on a hard task, as a smoke test takes them."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed, noise=1.5)
    model = perceptron(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (32,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=200, architecture="perceptron", adversarial="a noisy loss that ends on a plateau is not learning")
def noise_floor(steps: int, seed: int) -> dict[str, float]:
    """Regression on targets that are three parts noise: the loss soon rests at the noise, as it must."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed)
    noisy = targets + 1.7 * torch.randn(len(targets))
    model = perceptron(8, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (32,))
        loss = functional.mse_loss(model(inputs[batch]).squeeze(1), noisy[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=120, architecture="perceptron", adversarial="batches in the order of the data are not mixed")
def series_in_order(steps: int, seed: int) -> dict[str, float]:
    """A time series is read from start to end: neighbours are alike, and the order is the point."""
    torch.manual_seed(seed)
    time = torch.arange(steps * 16 + 20)
    series = (
        torch.sin(2 * math.pi * time / 40) + 0.3 * torch.sin(2 * math.pi * time / 7) + 0.05 * torch.randn(len(time))
    )
    windows = series.unfold(0, 13, 1)
    model = perceptron(12, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        window = windows[16 * step : 16 * step + 16]
        loss = functional.mse_loss(model(window[:, :12]), window[:, 12:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
