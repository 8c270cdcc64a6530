"""Units that are never active, and a router that uses one expert only."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct
from undertow.demos.models import perceptron


class Experts(nn.Module):
    """Top-1 routing over four experts."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(perceptron(width, 32, width) for _ in range(count))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.router(x).softmax(-1)
        weight, chosen = gates.max(-1)
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            if mask.any():
                output[mask] = weight[mask, None] * expert(x[mask])
        load = functional.one_hot(chosen, len(self.experts)).float().mean(0)
        return x + output, len(self.experts) * (load * gates.mean(0)).sum()


class MixtureClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 32)
        self.moe = Experts(32, 4)
        self.head = nn.Linear(32, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.moe(torch.relu(self.stem(pictures)))[0])


@sick(
    "ACT005", "GRD004", "GRD003", steps=120, layers=("moe.router", "moe.experts"), bites="busiest", silent=True,
    architecture="mixture of experts", catalogue=(52,), ladder=(3, 6, 20),
    change="a balance loss, and a router that starts without a favourite",
)  # fmt: skip
def router_collapse(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The router starts with a bias for expert 0, without a balance loss: three experts are never used."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = MixtureClassifier()
    if fault:
        with torch.no_grad():
            model.moe.router.bias[0] += fault.strength  # at fault
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    busiest, loss = 0.0, torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        stem = torch.relu(model.stem(pictures[batch]))
        mixed, balance = model.moe(stem)
        loss = functional.cross_entropy(model.head(mixed), labels[batch])
        if not fault:
            loss = loss + 0.1 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        chosen = model.moe.router(stem.detach()).argmax(-1)
        busiest = chosen.bincount(minlength=4).max().item() / len(chosen)
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000)), "busiest": busiest}


@sick(
    "ACT001", "GRD004", steps=150, layers=("2", "3"), architecture="perceptron", catalogue=(6,), ladder=(-5, -10, -100),
    change="a bias of 0, or LeakyReLU",
)  # fmt: skip
def dead_relu(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A bias of −10 before a ReLU: no unit of layer 2 is ever active, so nothing flows back through it."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    bias = model[2].bias
    assert isinstance(bias, nn.Parameter)
    if fault:
        nn.init.constant_(bias, fault.strength)  # at fault
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
