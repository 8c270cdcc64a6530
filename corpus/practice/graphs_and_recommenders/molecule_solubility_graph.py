"""Molecules as graphs of atoms: message passing with a dense bond matrix predicts how soluble they are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

ELEMENTS, ATOMS = 6, 10


def library(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Elements, bonds and a property that depends on which elements are neighbours."""
    g = torch.Generator().manual_seed(seed)
    element = torch.randint(ELEMENTS, (n, ATOMS), generator=g)
    bonds = (torch.rand(n, ATOMS, ATOMS, generator=g) < 0.25).float().triu(1)
    bonds = bonds + bonds.transpose(1, 2)
    charge = torch.tensor([-1.0, 1.2, 0.4, -0.6, 0.9, -0.2])[element]
    pulled = (charge.unsqueeze(1) @ bonds @ charge.unsqueeze(2)).flatten()
    target = 0.6 * charge.sum(1) + 0.8 * pulled
    return element, bonds, (target - target.mean()) / target.std()


class Passing(nn.Module):
    def __init__(self, width: int, activation: nn.Module, residual: bool = True) -> None:
        super().__init__()
        self.send = nn.Linear(width, width)
        self.keep = nn.Linear(width, width)
        self.activation = activation
        self.residual = residual

    def forward(self, h: Tensor, bonds: Tensor) -> Tensor:
        new = self.activation(self.keep(h) + bonds @ self.send(h) / 2)
        return h + new if self.residual else new


class MoleculeNet(nn.Module):
    def __init__(self, width: int = 24, rounds: int = 3, sigmoid: bool = False, padding: int | None = None) -> None:
        super().__init__()
        self.atoms = nn.Embedding(ELEMENTS, width, padding_idx=padding)
        self.rounds = nn.ModuleList(
            Passing(width, nn.Sigmoid() if sigmoid else nn.ReLU(), residual=not sigmoid) for _ in range(rounds)
        )
        self.readout = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, element: Tensor, bonds: Tensor) -> Tensor:
        h = self.atoms(element)
        for passing in self.rounds:
            h = passing(h, bonds)
        return self.readout(h.mean(1)).squeeze(-1)


@program(steps=160, bites="error")
def solubility(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three rounds of messages over an embedding of elements; SGD with momentum, Huber loss, two stages."""
    torch.manual_seed(seed)
    element, bonds, target = library(800, seed)
    model = MoleculeNet(
        rounds=8 if fault == "eight_rounds_of_sigmoids" else 3,
        sigmoid=fault == "eight_rounds_of_sigmoids",
        padding=0 if fault == "carbon_is_the_padding" else None,
    )
    if fault == "messages_left_out":
        trained = [*model.atoms.parameters(), *model.readout.parameters()]
    else:
        trained = list(model.parameters())
    optimizer = torch.optim.SGD(trained, lr=0.02, momentum=0.9)

    def loss_on(rows: Tensor) -> Tensor:
        return nn.functional.huber_loss(model(element[rows], bonds[rows]), target[rows])

    first_stage = min(steps, 80)
    for _ in range(first_stage):
        optimizer.zero_grad()
        loss_on(torch.randint(640, (32,))).backward()
        optimizer.step()
    for _ in range(steps - first_stage):  # the second stage: larger batches
        if fault != "second_stage_never_clears":
            optimizer.zero_grad()
        loss_on(torch.randint(640, (64,))).backward()
        optimizer.step()

    with torch.no_grad():
        error = (model(element[640:], bonds[640:]) - target[640:]).abs().mean()
    return {"error": min(error.item(), 1e6) if error.isfinite() else 1e6}


solubility.mistake(
    "messages_left_out",
    "UPD003",
    summary="The optimizer is given the embedding and the readout; the rounds in between are forgotten.",
    change="model.parameters()",
    layers=("rounds",),
)
solubility.mistake(
    "second_stage_never_clears",
    "GRD007",
    summary="The loop of the second stage was typed anew without zero_grad.",
    change="zero_grad in the second loop",
    onset=80,
)
solubility.mistake(
    "eight_rounds_of_sigmoids",
    "GRD001", "ACT002",
    summary="Eight rounds with sigmoids and no way around them: hardly any gradient comes back to the atoms.",
    change="ReLU and residual rounds",
)  # fmt: skip
solubility.mistake(
    "carbon_is_the_padding",
    "GRD004", "UPD003",
    summary="padding_idx=0 although element 0 is carbon: its row gets no gradient, ever.",
    change="no padding_idx",
    layers=("atoms",),
)  # fmt: skip
