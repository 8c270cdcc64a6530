"""Bodies that attract each other: learn the energy of a small cluster from where its bodies are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

BODIES = 5


def clusters(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Places of five bodies in the plane, and their potential energy: all negative, about minus ten."""
    places = torch.randn(n, BODIES, 2, generator=generator)
    apart = (places[:, :, None] - places[:, None]).pow(2).sum(-1) + 0.3
    pairs = torch.triu_indices(BODIES, BODIES, offset=1)
    return places, -(1 / apart.sqrt())[:, pairs[0], pairs[1]].sum(1)


class EnergyNet(nn.Module):
    """Lifts each body to eight dimensions, turns each distance there into a share of the energy, and adds them up."""

    def __init__(
        self, hidden: int = 32, depth: int = 3, end: nn.Module | None = None, with_itself: bool = False
    ) -> None:
        super().__init__()
        self.lift = nn.Linear(2, 8)
        self.trunk = nn.Sequential()
        for i in range(depth):
            self.trunk.append(nn.Linear(hidden if i else 1, hidden))
            self.trunk.append(nn.Tanh())
        self.read = nn.Linear(hidden, 1)
        self.end = end
        first, second = torch.triu_indices(BODIES, BODIES, offset=0 if with_itself else 1)
        self.first, self.second = first.tolist(), second.tolist()

    def forward(self, places: Tensor, eps: float) -> Tensor:
        lifted = self.lift(places)
        squares = (lifted[:, self.first] - lifted[:, self.second]).pow(2).sum(-1, keepdim=True)
        energy = self.read(self.trunk((squares + eps).sqrt()).mean(1))
        return self.end(energy) if self.end is not None else energy


@program(steps=180, bites="error")
def cluster_energy(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A tanh network on learned distances regresses an energy; Adam with a cosine schedule; bodies may merge."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    x, e = clusters(1500, g)
    test_x, test_e = clusters(400, g)
    model = EnergyNet(
        end=nn.ReLU() if fault == "activation_after_the_last_layer" else None,
        depth=9 if fault == "nine_layers_drawn_tiny" else 3,
        with_itself=fault == "root_of_the_distance_to_itself",
    )
    eps = 0.0 if fault.startswith("root_of") else 1e-6
    nn.init.constant_(model.read.bias, e.mean().item())
    if fault == "nine_layers_drawn_tiny":
        for layer in model.trunk:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(steps, 1))
    for step in range(steps):
        rows = torch.randint(len(x), (64,), generator=g)
        places, energy = x[rows], e[rows].unsqueeze(1)
        if step >= 70:  # the second half of the catalogue has clusters in which two bodies have merged
            places = places.clone()
            places[0, 1] = places[0, 0]
        predicted = model(places, eps)
        if fault == "column_minus_row":
            energy = e[rows]
        loss = ((predicted - energy) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        error = (model(test_x, 1e-6).squeeze(1) - test_e).pow(2).mean() / test_e.var()
    return {"error": error.item() if error.isfinite() else 1e6}


cluster_energy.mistake(
    "root_of_the_distance_to_itself",
    "NUM001", "NUM003",
    summary="The distance of a body to itself is the root of zero: its gradient is not a number.",
    change="add a small eps under the root",
    layers=("lift",),
)  # fmt: skip
cluster_energy.mistake(
    "root_of_zero_once_bodies_merge",
    "NUM001", "NUM003",
    summary="At step 70 two bodies lie in one place: the root of zero has no gradient.",
    change="add a small eps under the root",
    layers=("lift",),
    onset=70,
)  # fmt: skip
cluster_energy.mistake(
    "column_minus_row",
    "LSS002",
    summary="Predictions are a column and energies a row: the difference is a square matrix.",
    change="unsqueeze the energies",
)
cluster_energy.mistake(
    "nine_layers_drawn_tiny",
    "WGT003", "GRD001",
    summary="Nine tanh layers are drawn with a width of 0.01: the signal is gone before it arrives.",
    change="Xavier initialisation",
)  # fmt: skip
cluster_energy.mistake(
    "activation_after_the_last_layer",
    "ACT001", "GRD004",
    summary="A ReLU follows the last layer, but energies are negative: the output is zero for ever.",
    change="remove the last activation",
    layers=("end", "read"),
)  # fmt: skip
