"""Which way does a galaxy turn? A residual network with batch normalisation."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program


def night_sky(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Galaxies that wind to the left, to the right, or not at all; any angle, any brightness."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(3, (n,), generator=g)
    axis = torch.linspace(-1, 1, 18)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    radius, angle = (xx**2 + yy**2).sqrt(), torch.atan2(yy, xx)
    start = torch.rand(n, 1, 1, generator=g) * 2 * math.pi
    winding = torch.tensor([-6.0, 6.0, 0.0])[kind].view(n, 1, 1)
    arms = 1 + torch.cos(2 * angle + winding * radius + start)
    light = arms * torch.exp(-2 * radius) * (0.7 + 0.6 * torch.rand(n, 1, 1, generator=g))
    return (light + 0.1 * torch.randn(n, 18, 18, generator=g)).unsqueeze(1), kind


class Block(nn.Module):
    def __init__(self, planes: int, momentum: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes, momentum=momentum)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class GalaxyNet(nn.Module):
    def __init__(self, planes: int = 10, momentum: float = 0.1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, planes, 5, stride=2, padding=2, bias=False)
        self.stem_bn = nn.BatchNorm2d(planes, momentum=momentum)
        self.layer1 = Block(planes, momentum)
        self.layer2 = Block(planes, momentum)
        self.fc = nn.Linear(planes, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_bn(self.stem(x)))
        x = F.avg_pool2d(self.layer1(x), 2)
        return self.fc(self.layer2(x).mean((2, 3)))


def validate(model: GalaxyNet, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


@program(steps=150, bites="accuracy")
def galaxy_turns(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A residual network with batch normalisation, SGD with momentum and weight decay, validated now and then."""
    torch.manual_seed(seed)
    x, y = night_sky(900, seed)
    valid_x, valid_y = night_sky(300, seed + 500)
    model = GalaxyNet(momentum=1e-3 if fault == "running_average_far_too_slow" else 0.1)
    if fault == "freezes_by_a_letter":  # meant: everything whose name begins with "static"
        for name, parameter in model.named_parameters():
            if name.startswith("st"):
                parameter.requires_grad = False
    first = model.stem.weight.detach().clone()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9, weight_decay=5e-4
    )
    for step in range(steps):
        if step % 50 == 0 and step > 0:
            validate(model, valid_x, valid_y)
        if fault != "validation_without_return":
            model.train()
        picked = torch.randint(len(x), (32,))
        loss = F.cross_entropy(model(x[picked]), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved = (model.stem.weight.detach() - first).norm() / first.norm()
    return {"accuracy": validate(model, valid_x, valid_y), "moved": moved.item()}


galaxy_turns.mistake(
    "validation_without_return",
    "MOD001",
    summary="The first validation leaves the model in eval: batch normalisation is frozen from there on.",
    change="model.train() at the top of every step",
    layers=("stem_bn", "layer1.bn1", "layer1.bn2", "layer2.bn1", "layer2.bn2"),
    onset=50,
)
galaxy_turns.mistake(
    "freezes_by_a_letter",
    "UPD003", "GRD003",
    summary="A loop that freezes by name also matches the stem, which was never trained before.",
    change="freeze nothing",
    layers=("stem", "stem_bn"),
    bites="moved",
    silent=True,
)  # fmt: skip
galaxy_turns.mistake(
    "running_average_far_too_slow",
    "MOD002",
    summary="Normalisation averages over a thousand steps in a run of 150: evaluation uses no statistics at all.",
    change="momentum=0.1",
    layers=("stem_bn", "layer1.bn1", "layer1.bn2", "layer2.bn1", "layer2.bn2"),
)
