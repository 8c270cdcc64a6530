"""Weights that start equal and stay so."""

import torch
from torch import nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct
from undertow.demos.models import perceptron


@sick(
    "WGT002", steps=150, layers=("0", "2", "4"), architecture="perceptron", catalogue=(5,), ladder=(0.01, 0.05, 0.5),
    change="nn.init.kaiming_uniform_(weight)",
)  # fmt: skip
def constant_start(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """All weights start at 0.05: the units of a layer are copies of one another and stay so."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = perceptron(64, 64, 32, 10)
    if fault:
        for parameter in model.parameters():
            nn.init.constant_(parameter, fault.strength)  # at fault
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
