"""WGT002 and WGT003: weights that start equal, or far too small or too large."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct
from undertow.demos.models import perceptron


@sick(
    "WGT003", "GRD001", steps=150, architecture="deep perceptron", catalogue=(2,), ladder=(0.03, 0.01, 0.001),
    change="nn.init.xavier_uniform_(weight, gain=5 / 3)",
)  # fmt: skip
def weights_too_small(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Six tanh layers start with a standard deviation of 0.01: the signal is gone after three."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = perceptron(64, 48, 48, 48, 48, 48, 48, 10, activation=nn.Tanh)
    for layer in model:
        if isinstance(layer, nn.Linear):
            if fault:
                nn.init.normal_(layer.weight, std=fault.strength)  # at fault
            else:
                nn.init.xavier_uniform_(layer.weight, gain=5 / 3)
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "WGT003", "GRD002", steps=150, architecture="deep perceptron", catalogue=(3,), ladder=(0.5, 1.0, 5.0),
    change="nn.init.kaiming_normal_(weight)",
)  # fmt: skip
def weights_too_large(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Six ReLU layers start with a standard deviation of 1: the first loss is in the thousands."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = perceptron(64, 64, 64, 64, 64, 64, 64, 10)

    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            if fault:
                nn.init.normal_(module.weight, 0.0, fault.strength)  # at fault
            else:
                nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)

    model.apply(initialise)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "WGT003", "GRD002", steps=150, layers=("4",), architecture="perceptron", catalogue=(4,), ladder=(10, 30, 300),
    change="initialise layer 4 as the others are",
)  # fmt: skip
def one_layer_too_large(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """One of five layers starts with a standard deviation of 30."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = perceptron(64, 64, 64, 64, 32, 10)
    middle = model[4]
    assert isinstance(middle, nn.Linear)
    if fault:
        nn.init.normal_(middle.weight, std=fault.strength)  # at fault
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


class SmallCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.fc1 = nn.Linear(24 * 4, 48)
        self.fc2 = nn.Linear(48, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(pictures.view(-1, 1, 8, 8))), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2).flatten(1)
        return self.fc2(functional.relu(self.fc1(x)))


@sick(
    "WGT003", "GRD002", steps=100, layers=("conv2",), architecture="convolutional", catalogue=(4,),
    ladder=(10, 30, 100), change="initialise conv2 as the others are",
)  # fmt: skip
def one_convolution_too_large(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """One convolution was initialised with its fan-in where one over its root belongs."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = SmallCNN()
    if fault:
        nn.init.normal_(model.conv2.weight, std=fault.strength)  # at fault
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "WGT002", "GRD004", steps=120, layers=("conv1", "conv2", "fc1", "fc2"), architecture="convolutional",
    catalogue=(5,), change="leave the default initialisation",
)  # fmt: skip
def zero_start(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """All weights and biases start at zero: only the last bias ever learns."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = SmallCNN()
    if fault:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)  # at fault
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
