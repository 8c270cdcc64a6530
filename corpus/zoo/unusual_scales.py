"""Healthy trainings with huge, tiny or sparse numbers: the scale of a gradient says nothing about its health."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy
from corpus.data import digits
from undertow.demos.data import curves, glyphs, share_correct
from undertow.demos.models import perceptron


def _scaled_loss(steps: int, seed: int, factor: float) -> dict[str, float]:
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = perceptron(64, 64, 32, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = factor * functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item() / factor, "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=150, architecture="perceptron", adversarial="gradients below an absolute threshold are vanishing")
def tiny_loss(steps: int, seed: int) -> dict[str, float]:
    """The loss is multiplied by 0.00001, which Adam does not notice."""
    return _scaled_loss(steps, seed, 1e-5)


@healthy(steps=150, architecture="perceptron", adversarial="gradients above an absolute threshold are exploding")
def huge_loss(steps: int, seed: int) -> dict[str, float]:
    """The loss is multiplied by 100,000, which Adam does not notice."""
    return _scaled_loss(steps, seed, 1e5)


@healthy(steps=200, architecture="perceptron", adversarial="large losses and gradients are a fault")
def large_targets(steps: int, seed: int) -> dict[str, float]:
    """Regression on targets of some hundreds with Huber's loss: large gradients, and it learns."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed)
    model = perceptron(8, 64, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.huber_loss(model(inputs[batch]).squeeze(1), 100 * targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=200, architecture="perceptron", adversarial="updates that point back and forth are a fault")
def edge_of_stability(steps: int, seed: int) -> dict[str, float]:
    """Full-batch gradient descent at the edge of stability: it swings, and the loss falls all the same."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed, count=256)
    model = perceptron(64, 48, 10, activation=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    targets = functional.one_hot(labels, 10).float()
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = (model(inputs) - targets).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=150, architecture="perceptron", adversarial="mostly zero activations are dead units")
def sparse_but_alive(steps: int, seed: int) -> dict[str, float]:
    """Biases start at −1: four of five activations are zero at any time, and every unit is needed now and then."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = perceptron(64, 256, 256, 10)
    for layer in list(model)[:-1]:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.constant_(layer.bias, -1.0 if layer.in_features == 64 else -0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (128,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=60, architecture="embedding", adversarial="a tiny mean gradient is vanishing; unused rows are a fault")
def huge_table(steps: int, seed: int) -> dict[str, float]:
    """A table of 400,000 rows, readers and books; each batch meets a hundred new ones, and all other rows rest."""
    torch.manual_seed(seed)
    table = nn.Embedding(400_000, 4)
    nn.init.normal_(table.weight, std=0.1)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(8, 2))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        readers, books = torch.randint(400_000, (128,)), torch.randint(500, (128,))
        loss = functional.cross_entropy(model(torch.stack([readers, books], 1)), books * 7 // 10 % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=150, architecture="perceptron", adversarial="any infinite gradient is a fault")
def intermittent_infinity(steps: int, seed: int) -> dict[str, float]:
    """float16 autocast whose scaler grows every ten steps until a gradient overflows, is skipped, and goes on."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = perceptron(64, 64, 32, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_factor=4.0, growth_interval=10)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


class LayerScaled(nn.Module):
    """A ConvNeXt-like block: depthwise convolution, norm, two linear layers, and a scale of one in a million."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.grow = nn.Linear(channels, 4 * channels)
        self.shrink = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(1e-6 * torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        branch = self.gamma * self.shrink(functional.gelu(self.grow(branch)))
        return x + branch.permute(0, 3, 1, 2)


@healthy(steps=80, architecture="convolutional", adversarial="a block whose gradient is a millionth of its siblings'")
def layer_scale(steps: int, seed: int) -> dict[str, float]:
    """Blocks behind a layer scale of 0.000001: they join in slowly, by design."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 2, stride=2), LayerScaled(16), LayerScaled(16), LayerScaled(16),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=120, architecture="convolutional", adversarial="inputs that are not of unit scale are a fault")
def raw_inputs_behind_a_norm(steps: int, seed: int) -> dict[str, float]:
    """Bytes from 0 to 255 enter a batch norm first, which scales them."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    inputs = 255 * inputs
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.BatchNorm2d(1), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=150, architecture="perceptron", adversarial="a loss below zero has the wrong sign")
def negative_likelihood(steps: int, seed: int) -> dict[str, float]:
    """A density is learned: its negative log-likelihood falls below zero, as that of a density may."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed)
    model = perceptron(8, 64, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (128,))
        mean, log_variance = model(inputs[batch]).unbind(1)
        loss = functional.gaussian_nll_loss(0.1 * mean, 0.1 * targets[batch], (0.1 * log_variance - 4).exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
