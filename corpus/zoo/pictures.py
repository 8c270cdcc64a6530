"""Convolutional networks and tricks of the trade around them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from corpus.case import healthy
from corpus.data import digits
from undertow.demos.data import glyphs, share_correct


def _small_cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 16, 10),
    )  # fmt: skip


@healthy(steps=120, architecture="convolutional")
def cnn_adam(steps: int, seed: int) -> dict[str, float]:
    """A small convolutional network under Adam."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = _small_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


class ConvolutionBlock(nn.Module):
    def __init__(self, channels: int, keep: float = 1.0) -> None:
        super().__init__()
        self.keep = keep
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm2.weight)  # each block starts as the identity

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand(()) > self.keep:
            return x
        branch = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        return functional.relu(x + self.norm2(self.conv2(branch)) / (self.keep if self.training else 1), inplace=True)


class SmallResNet(nn.Module):
    def __init__(self, keep: float = 1.0) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(*[ConvolutionBlock(16, keep) for _ in range(3)])
        self.head = nn.Linear(64, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        features = self.blocks(self.stem(pictures.view(-1, 1, 8, 8)))
        return self.head(functional.avg_pool2d(features, 4).flatten(1))


def _train_resnet(steps: int, seed: int, keep: float) -> dict[str, float]:
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = SmallResNet(keep)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch], label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 49:  # validation, and back to training
            share_correct(model, inputs[:200], labels[:200])
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=100, architecture="residual", adversarial="a scale that starts at zero is a bad start")
def resnet_batchnorm(steps: int, seed: int) -> dict[str, float]:
    """Residual blocks with batch norm, zero-initialised last scale, label smoothing and a cosine schedule."""
    return _train_resnet(steps, seed, keep=1.0)


@healthy(steps=100, architecture="residual", adversarial="a block without a gradient is cut off")
def stochastic_depth(steps: int, seed: int) -> dict[str, float]:
    """Blocks are skipped at random: their parameters have no gradient in those steps."""
    return _train_resnet(steps, seed, keep=0.6)


@healthy(steps=60, architecture="convolutional", adversarial="several backward passes to a step were not cleared")
def accumulation(steps: int, seed: int) -> dict[str, float]:
    """Four micro-batches to a step, each loss divided by four."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = _small_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        for _ in range(4):
            batch = torch.randint(len(inputs), (16,))
            loss = functional.cross_entropy(model(inputs[batch]), labels[batch]) / 4
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": 4 * loss.item(), "accuracy": share_correct(model, inputs, labels)}


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(64, 64)
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.1)) for _ in range(3))
        self.head = nn.Linear(64, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.first(pictures)
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=self.reentrant) if self.training else part(x)
        return self.head(x)


@healthy(steps=120, architecture="perceptron", adversarial="a backward inside a backward is a second one")
def activation_checkpointing(steps: int, seed: int) -> dict[str, float]:
    """Activations are computed again in the backward pass, both kinds of checkpointing."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = nn.ModuleList([Checkpointed(reentrant=False), Checkpointed(reentrant=True)])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = sum((functional.cross_entropy(m(inputs[batch]), labels[batch]) for m in model), torch.zeros(()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model[0], inputs, labels)}


@healthy(steps=120, architecture="perceptron", adversarial="a trainable model without gradients is cut off")
def teacher_average(steps: int, seed: int) -> dict[str, float]:
    """A student learns from a moving average of itself; the teacher keeps `requires_grad` but never gets a gradient."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    student = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        logits = student(inputs[batch])
        with torch.no_grad():
            target = teacher(inputs[batch] + 0.1 * torch.randn(64, 64)).softmax(-1)
        loss = functional.cross_entropy(logits, labels[batch]) + 0.5 * functional.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
    return {"loss": loss.item(), "accuracy": share_correct(teacher, inputs, labels)}
