"""MOD001 and MOD002: normalisation and dropout in the wrong mode, or with settings they cannot work with."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct
from undertow.demos.modes import NORMS, ResNet


@sick(
    "MOD001", steps=150, onset=40, layers=NORMS, bites="statistics", silent=True, architecture="residual",
    catalogue=(27,), onsets=(100,), change="model.train() after every validation",
)  # fmt: skip
def train_forgotten_after_validation(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Validation calls `model.eval()` and nobody calls `model.train()` again."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    test_pictures, test_labels = glyphs(seed + 1000)
    model = ResNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    accuracy, used, loss = 0.0, 0, torch.tensor(0.0)
    for step in range(steps):
        if step > 0 and step % 20 == 0:
            model.eval()  # at fault
            with torch.no_grad():
                accuracy = (model(test_pictures).argmax(1) == test_labels).float().mean().item()
            if not fault.at(step):
                model.train()
        used += model.bn.training
        batch = torch.randint(len(pictures), (32,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": accuracy, "statistics": used / steps}


@sick(
    "MOD002", "GRD008", steps=150, layers=NORMS, architecture="residual", catalogue=(28,), ladder=(3, 2, 1),
    change="a batch of 32, or GroupNorm",
)  # fmt: skip
def batch_norm_of_two(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Batch norm with two pictures to a batch: its statistics are noise, and evaluation uses others."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    size = int(fault.strength) if fault else 32  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (size,))  # at fault
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "MOD002", "GRD008", steps=200, layers=("1", "4"), architecture="perceptron", catalogue=(28,),
    change="a batch of 64, or LayerNorm",
)  # fmt: skip
def batch_norm_of_pairs(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Batch norm over batches of two rows puts out plus or minus one, whatever comes in."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (2 if fault else 64,))  # at fault
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "MOD002", steps=120, layers=("1", "4"), architecture="perceptron", catalogue=(28,), ladder=(10, 1e4, 1e8),
    change="the default eps of 1e-5",
)  # fmt: skip
def batch_norm_eps(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """An eps of 10,000, a slip of the exponent's sign, shrinks what batch norm puts out to almost nothing."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    eps = fault.strength if fault else 1e-5  # at fault
    model = nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64, eps=eps), nn.ReLU(),  # at fault
        nn.Linear(64, 32), nn.BatchNorm1d(32, eps=eps), nn.ReLU(), nn.Linear(32, 10),  # at fault
    )  # fmt: skip
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
    "MOD002", steps=120, layers=("features.1", "features.4"), architecture="convolutional", catalogue=(28,),
    change="the default momentum of 0.1",
)  # fmt: skip
def batch_norm_momentum_zero(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Momentum 0 in batch norm (TensorFlow's 1.0 turned round): the running statistics never leave their start."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    momentum = 0.0 if fault else 0.1  # at fault
    model = nn.Sequential()
    model.add_module(
        "features",
        nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12, momentum=momentum), nn.ReLU(),  # at fault
            nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12, momentum=momentum), nn.ReLU(), nn.Flatten(),
        ),
    )  # fmt: skip
    model.add_module("head", nn.Linear(12 * 16, 10))
    shift = 3 * (pictures.view(-1, 1, 8, 8) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(shift[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test, answers = glyphs(seed + 1000)
    return {"loss": loss.item(), "accuracy": share_correct(model, 3 * (test.view(-1, 1, 8, 8) + 1), answers)}


@sick(
    "MOD001", steps=200, layers=("drop1", "drop2"), bites="dropped", silent=True, architecture="perceptron",
    catalogue=(29,), onsets=(60,), change="model.train() after every epoch's validation",
)  # fmt: skip
def dropout_off(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The network trains in evaluation mode, so its dropout does nothing."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=256)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.drop1 = nn.Linear(64, 128), nn.Dropout(0.5)
            self.fc2, self.drop2 = nn.Linear(128, 128), nn.Dropout(0.5)
            self.head = nn.Linear(128, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.drop1(functional.relu(self.fc1(x)))
            return self.head(self.drop2(functional.relu(self.fc2(x))))

    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    dropping, loss = 0, torch.tensor(0.0)
    for step in range(steps):
        if fault.at(step):
            model.eval()  # at fault
        dropping += model.drop1.training
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = share_correct(model, *glyphs(seed + 1000))
    return {"loss": loss.item(), "accuracy": accuracy, "dropped": dropping / steps}
