"""A flock of starlings: how does each bird turn, given where the others are? A graph network over all pairs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

BIRDS = 7


def flocks(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Places in the plane; birds repel each other when close and attract each other when far."""
    place = 1.5 * torch.randn(count, BIRDS, 2, generator=generator)
    return place, pull(place)


def pull(place: Tensor) -> Tensor:
    gap = place[:, None] - place[:, :, None]
    far = gap.norm(dim=-1, keepdim=True) + torch.eye(BIRDS)[..., None]
    strength = 0.5 * torch.tanh(far - 1) - 0.8 * torch.exp(-3 * far)
    return (strength * gap / far * (1 - torch.eye(BIRDS)[..., None])).sum(2)


class Flock(nn.Module):
    """The pull along each line of sight is a learnt function of the distance."""

    def __init__(self, normalise: bool = False, width: int = 48) -> None:
        super().__init__()
        self.distance = nn.LayerNorm(1) if normalise else nn.Identity()
        self.edge = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.strength = nn.Linear(width, 1)

    def forward(self, place: Tensor) -> Tensor:
        gap = place[:, None] - place[:, :, None]
        far = gap.norm(dim=-1, keepdim=True) + torch.eye(BIRDS)[..., None]
        force = self.strength(self.edge(self.distance(far)))
        return (force * gap / far).sum(2)


def _error(model: nn.Module, seed: int) -> float:
    place, turn = flocks(200, torch.Generator().manual_seed(seed + 8080))
    with torch.no_grad():
        error = (model(place) - turn).square().mean() / turn.square().mean()
    return error.nan_to_num(1e6).clamp(max=1e6).item()


@program(steps=160, bites="error")
def starlings(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adam with a rate that is lowered at two milestones."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Flock(normalise=fault == "flock_norm_over_one_number")
    rate = 5e-3
    if fault == "flock_rate_times_the_time_step":
        rate *= 1e-4
    elif fault == "flock_rate_of_descent":
        rate = 1.0
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    milestones = torch.optim.lr_scheduler.MultiStepLR(optimizer, [int(steps * 0.6), int(steps * 0.85)], 0.3)
    loss, late = torch.zeros(()), 0.0
    for step in range(steps):
        if fault == "flock_optimizer_follows_the_rate" and step >= 60:
            optimizer = torch.optim.Adam(model.parameters(), lr=optimizer.param_groups[0]["lr"])
        place, turn = flocks(24, generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(place), turn)
        loss.backward()
        optimizer.step()
        if fault != "flock_optimizer_follows_the_rate":
            milestones.step()
        late += 0.05 * (min(loss.nan_to_num(1e6).item(), 1e6) - late)
    return {"late_loss": late, "error": _error(model, seed)}


starlings.mistake(
    "flock_norm_over_one_number",
    "MOD002", "ACT003",
    summary="A layer norm over the one number that is the distance: it returns zero for every pair.",
    change="no norm, or one over several features",
    layers=("distance",),
)  # fmt: skip
starlings.mistake(
    "flock_rate_times_the_time_step",
    "OPT007", "UPD002", "OPT005",
    summary="The rate was multiplied by the time step of the simulation, 1e-4.",
    change="lr=5e-3",
)  # fmt: skip
starlings.mistake(
    "flock_rate_of_descent",
    "OPT007", "UPD001", "OPT001", "OPT003", "OPT004", "GRD002",
    summary="Adam with a rate of one, taken over from plain descent.",
    change="lr=5e-3",
)  # fmt: skip
starlings.mistake(
    "flock_optimizer_follows_the_rate",
    "OPT008",
    summary="From step 60 the rate is 'set' by building a new Adam before every step: its averages start from zero.",
    change="set group['lr'] instead",
    bites="late_loss",
    onset=60,
)


@program(steps=140, bites="error", adversarial="a gradient that is taken inside the forward pass was left over")
def starlings_from_an_energy(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The network gives an energy; the turn is its slope, so every step differentiates twice."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    energy = nn.Sequential(nn.Linear(1, 48), nn.Softplus(), nn.Linear(48, 48), nn.Softplus(), nn.Linear(48, 1))
    optimizer = torch.optim.AdamW(energy.parameters(), lr=4e-3)
    pairs = torch.triu_indices(BIRDS, BIRDS, 1)
    loss = torch.zeros(())
    for _ in range(steps):
        place, turn = flocks(24, generator)
        place.requires_grad_()
        far = (place[:, pairs[0]] - place[:, pairs[1]]).norm(dim=-1, keepdim=True)
        (slope,) = torch.autograd.grad(energy(far).sum(), place, create_graph=True)
        loss = nn.functional.mse_loss(-slope, turn)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "error": loss.item()}


@program(steps=140, bites="error", adversarial="a loss and gradients near zero have vanished")
def starlings_from_afar(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The turns are in light-years per second squared: the loss is of the order of 1e-12, and Adam learns."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Flock()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, eps=1e-16)
    loss = torch.zeros(())
    for _ in range(steps):
        place, turn = flocks(24, generator)
        optimizer.zero_grad()
        loss = (1e-6 * (model(place) - turn)).square().mean()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item() * 1e12, "error": _error(model, seed)}
