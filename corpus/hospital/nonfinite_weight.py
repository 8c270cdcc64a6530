"""NUM003: a weight is infinite or not a number."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, sentences, share_correct


@sick(
    "NUM003", steps=100, layers=("2",), change="check a checkpoint with torch.isfinite before loading it",
    architecture="perceptron",
)  # fmt: skip
def bad_checkpoint(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The checkpoint that training starts from holds one NaN in layer 2."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    checkpoint = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if fault:
        checkpoint["2.weight"][5, 7] = float("nan")  # at fault
    model.load_state_dict(checkpoint)
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
    "NUM003", steps=100, layers=("0",), bites="finite", silent=True, change="initialise the rows of new tokens",
    architecture="embedding",
)  # fmt: skip
def poisoned_embedding(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """New rows of an embedding were left uninitialised (NaN); no training token uses them, so the loss looks fine."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = nn.Sequential(nn.Embedding(40, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 40))
    table = model[0].weight
    assert isinstance(table, nn.Parameter)
    with torch.no_grad():
        table[32:] = float("nan") if fault else table[:32].mean(0)  # at fault
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = tokens[torch.randint(len(tokens), (16,))]
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        finite = model(torch.tensor([[3, 35]])).isfinite().all()
    return {"loss": loss.item(), "finite": float(finite)}


@sick(
    "NUM003", steps=120, onset=60, change="end the schedule one step later: divide by (last − step + 1)",
    architecture="perceptron",
)  # fmt: skip
def schedule_divides_by_zero(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A home-made schedule divides 0 by 0 at step 60: the learning rate is NaN, then every weight."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        remaining = torch.tensor(60.0 - step).clamp_min(0.0 if fault else 1.0)
        optimizer.param_groups[0]["lr"] = 0.05 * (remaining / (remaining * 60) ** 0.5).item()  # at fault
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
