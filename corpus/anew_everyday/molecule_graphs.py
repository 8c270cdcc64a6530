"""Properties of molecules with graph networks on dense adjacency matrices, in batches of padded graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

NODES, KINDS = 12, 6


def molecules(seed: int, count: int, lone_from: int) -> tuple[Tensor, Tensor, Tensor]:
    """Kinds of atoms, bonds (with atoms that have none from `lone_from` on), and a property to predict per atom."""
    g = torch.Generator().manual_seed(seed)
    kinds = torch.randint(KINDS, (count, NODES), generator=g)
    bonds = (torch.rand(count, NODES, NODES, generator=g) < 0.18).float()
    ring = torch.roll(torch.eye(NODES), 1, 0)
    bonds = torch.maximum(torch.maximum(bonds, bonds.transpose(1, 2)), ring + ring.T)
    bonds = bonds * (1 - torch.eye(NODES))
    bonds[lone_from:, 0, :] = bonds[lone_from:, :, 0] = 0.0
    charge = (kinds.float() - 2.5) / 1.7
    around = (bonds @ charge[..., None]).squeeze(-1)
    return kinds, bonds, torch.tanh(0.8 * around) * charge + 0.3 * charge


def normalised(bonds: Tensor, with_self: bool) -> Tensor:
    if with_self:
        bonds = bonds + torch.eye(NODES)
    root = bonds.sum(-1) ** -0.5  # at fault: molecules_lone_atoms
    return root[:, :, None] * bonds * root[:, None, :]


class Convolution(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.near = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        return torch.relu(self.own(x) + self.near(bonds @ x))


class AtomModel(nn.Module):
    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.atoms = nn.Embedding(KINDS, width)
        self.layers = nn.ModuleList(Convolution(width) for _ in range(depth))
        self.read = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, kinds: Tensor, bonds: Tensor) -> Tensor:
        x = self.atoms(kinds)
        for layer in self.layers:
            x = x + layer(x, bonds)
        return self.read(x).squeeze(-1)


@program(steps=400, bites="error")
def molecule_charges(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Graph network for a property of atoms; molecules come in the order of the archive, epoch by epoch."""
    torch.manual_seed(seed)
    # The archive's last part has atoms without bonds; the first epoch reaches it at step 90.
    kinds, bonds, truth = molecules(seed, 3200, lone_from=2880)
    adjacency = normalised(bonds, with_self=mistake != "molecules_lone_atoms")
    model = AtomModel()
    limit = 1e-4 if mistake == "molecules_clipped_to_nothing" else 5.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        start = step * 32 % len(kinds)
        rows = slice(start, start + 32)
        loss = F.mse_loss(model(kinds[rows], adjacency[rows]), truth[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)  # at fault: molecules_clipped_to_nothing
        optimizer.step()
    kinds, bonds, truth = molecules(seed + 13, 400, lone_from=400)
    with torch.no_grad():
        error = F.mse_loss(model(kinds, normalised(bonds, with_self=mistake != "molecules_lone_atoms")), truth)
    return {"error": 1e3 if error.isnan() else error.item() / truth.var().item()}


molecule_charges.mistake(
    "molecules_lone_atoms",
    "NUM004",
    summary="Atoms without bonds have degree zero, whose inverse root is infinite.",
    change="every atom is its own neighbour",
    layers=("layers.0",),
    onset=90,
)
molecule_charges.mistake(
    "molecules_clipped_to_nothing",
    "GRD010",
    summary="Gradients are clipped to a norm of 1e-4, on every step.",
    change="a norm of 5",
)


class Smoothing(nn.Module):
    """Twelve rounds of averaging over neighbours, with or without a way around each."""

    def __init__(self, width: int, depth: int, skip: bool) -> None:
        super().__init__()
        self.atoms = nn.Embedding(KINDS, width)
        self.rounds = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.skip = skip
        self.read = nn.Linear(width, 1)

    def forward(self, kinds: Tensor, bonds: Tensor) -> Tensor:
        mean = bonds / bonds.sum(-1, keepdim=True)
        x = self.atoms(kinds)
        for layer, norm in zip(self.rounds, self.norms, strict=True):
            spread = torch.relu(norm(layer(mean @ x)))
            x = x + spread if self.skip else spread  # at fault: molecules_smoothed_away
        return self.read(x).squeeze(-1)


@program(steps=300, bites="error")
def molecule_deep_averaging(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Twelve rounds of averaging over neighbours, with residual connections; Adam."""
    torch.manual_seed(seed)
    kinds, bonds, truth = molecules(seed, 2000, lone_from=2000)
    bonds = bonds + torch.eye(NODES)
    model = Smoothing(32, 12, skip=mistake != "molecules_smoothed_away")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(kinds), (32,))
        loss = F.mse_loss(model(kinds[rows], bonds[rows]), truth[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    kinds, bonds, truth = molecules(seed + 13, 400, lone_from=400)
    with torch.no_grad():
        error = F.mse_loss(model(kinds, bonds + torch.eye(NODES)), truth)
    return {"error": error.item() / truth.var().item()}


molecule_deep_averaging.mistake(
    "molecules_smoothed_away",
    "ACT003",
    summary="Twelve rounds of averaging without a way around them make all atoms of a molecule alike.",
    change="residual connections",
    layers=("rounds", "norms"),
)
