"""A small convolutional network that tells drawings apart, in the style of a first course."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

SHEET = 16


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Disks, frames, crosses and strokes, somewhere on a noisy sheet."""
    labels = torch.randint(4, (count,), generator=generator)
    centre = torch.randint(5, 11, (2, count, 1, 1), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(SHEET), torch.arange(SHEET), indexing="ij")
    down, right = rows - centre[0], columns - centre[1]
    reach = torch.maximum(down.abs(), right.abs())
    kinds = torch.stack(
        [
            down**2 + right**2 <= 8,
            reach == 3,
            ((down == 0) | (right == 0)) & (reach <= 3),
            (down == right) & (reach <= 4),
        ]
    )
    sheets = kinds[labels, torch.arange(count)].float() + 0.35 * torch.randn(count, SHEET, SHEET, generator=generator)
    return sheets.unsqueeze(1), labels


class DrawingNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.relu3 = nn.ReLU()
        self.drop = nn.Dropout(0.4)
        self.fc1 = nn.Linear(16 * 16, 32)
        self.relu4 = nn.ReLU()
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.conv1(x))
        x = self.relu2(self.conv2(x))
        x = self.relu3(self.conv3(x))
        x = self.drop(x.flatten(1))
        return self.fc2(self.relu4(self.fc1(x)))


@torch.no_grad()
def accuracy_of(net: nn.Module, x: Tensor, y: Tensor) -> float:
    return (net(x).argmax(1) == y).float().mean().item()


@program(steps=160, bites="accuracy")
def drawings(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three convolutions and two dense layers with dropout, Adam, a look at held-out drawings every 40 steps."""
    torch.manual_seed(seed)
    pencil = torch.Generator().manual_seed(seed)
    x, y = draw(800, pencil)
    held_x, held_y = draw(300, pencil)
    net = DrawingNet()
    if fault == "one_conv_started_wide":
        nn.init.normal_(net.conv2.weight, std=30.0)
    if fault == "rare_object_bias_on_a_hidden_conv":  # the prior for rare objects belongs on the last layer
        net.conv2.bias = nn.Parameter(torch.full((16,), -4.6))
    rate = 0.4 if fault == "rate_of_plain_descent_given_to_adam" else 2e-3
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    active = 0
    for step in range(steps):
        picked = torch.randint(len(x), (32,), generator=pencil)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[picked]), y[picked])
        loss.backward()
        optimizer.step()
        active += net.drop.training
        if step % 40 == 39:
            net.eval()
            accuracy_of(net, held_x, held_y)
            if fault != "never_back_from_the_held_out_look":
                net.train()
    net.eval()
    with torch.no_grad():
        held_loss = nn.functional.cross_entropy(net(held_x), held_y).item()
    return {"accuracy": accuracy_of(net, held_x, held_y), "loss": held_loss, "dropout_share": active / max(steps, 1)}


drawings.mistake(
    "one_conv_started_wide",
    "WGT003", "GRD002",
    summary="The second convolution is drawn from a normal of width thirty.",
    change="leave the default initialisation",
    layers=("conv2",),
    bites="loss",
)  # fmt: skip
drawings.mistake(
    "rare_object_bias_on_a_hidden_conv",
    "ACT001", "WGT003", "GRD004",
    summary="A bias of -4.6, meant for the scores, is set on a hidden convolution: its units never fire.",
    change="bias 0 on conv2",
    layers=("conv2", "relu2"),
)  # fmt: skip
drawings.mistake(
    "rate_of_plain_descent_given_to_adam",
    "OPT007", "UPD001", "ACT001", "OPT001",
    summary="Adam gets the learning rate of a script that used plain gradient descent: the units die.",
    change="lr=2e-3",
)  # fmt: skip
drawings.mistake(
    "never_back_from_the_held_out_look",
    "MOD001",
    summary="After the first look at held-out drawings the network stays in eval: no dropout from there on.",
    change="net.train() after the look",
    layers=("drop",),
    onset=40,
    bites="dropout_share",
    silent=True,
)
