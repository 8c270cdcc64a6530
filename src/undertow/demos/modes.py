"""Batch normalisation and dropout in the wrong mode, or with a setting they cannot work with."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(x + self.bn2(self.conv2(out)))


class ResNet(nn.Module):
    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.layer1 = Block(channels)
        self.layer2 = Block(channels)
        self.fc = nn.Linear(4 * channels, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        x = functional.relu(self.bn(self.conv(pictures.view(-1, 1, 8, 8))))
        return self.fc(functional.avg_pool2d(self.layer2(self.layer1(x)), 4).flatten(1))


NORMS = ("bn", "layer1.bn1", "layer1.bn2", "layer2.bn1", "layer2.bn2")


def _drift_of_statistics(model: ResNet) -> float:
    """How far the running variances are from where they started."""
    variances = [norm.running_var for norm in (model.bn, model.layer1.bn1, model.layer2.bn2)]
    return sum((variance - 1).abs().mean().item() for variance in variances if variance is not None) / 3


@sick(
    "MOD001", steps=100, layers=NORMS, bites="statistics", silent=True, architecture="residual", catalogue=(27,),
    change="model.train() before the loop",
)  # fmt: skip
def batch_norm_in_eval(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The model was put into evaluation mode to look at it, and trained so: batch norm never sees a statistic."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = ResNet()
    if fault:
        model.eval()  # at fault
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (32,))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    accuracy = share_correct(model, *glyphs(seed + 1000))
    return {"loss": loss.item(), "accuracy": accuracy, "statistics": _drift_of_statistics(model)}


@sick(
    "MOD002", "MOD001", "GRD008", steps=150, layers=("2", "5"), architecture="perceptron", catalogue=(47,),
    ladder=(0.93, 0.97, 0.995), change="nn.Dropout(0.1): the argument is the share dropped, not kept",
)  # fmt: skip
def dropout_of_nearly_everything(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """`nn.Dropout(0.97)`: somebody took the rate for the share to keep."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    rate = fault.strength if fault else 0.1  # at fault
    model = nn.Sequential(
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Dropout(rate),  # at fault
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Dropout(rate),
        nn.Linear(32, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
