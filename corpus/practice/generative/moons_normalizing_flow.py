"""A normalizing flow of affine couplings over two interleaved half-moons."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

from corpus.case import program


class Coupling(nn.Module):
    def __init__(self, flip: bool, hidden: int = 32) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.scale_and_shift = nn.Linear(hidden, 2)
        nn.init.zeros_(self.scale_and_shift.weight)
        nn.init.zeros_(self.scale_and_shift.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keep, move = x.flip(1).split(1, 1) if self.flip else x.split(1, 1)
        log_scale, shift = self.scale_and_shift(self.net(keep)).split(1, 1)
        log_scale = 2 * torch.tanh(log_scale / 2)
        moved = move * log_scale.exp() + shift
        pair = torch.cat([moved, keep], 1) if self.flip else torch.cat([keep, moved], 1)
        return pair, log_scale.squeeze(1)


class Flow(nn.Module):
    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(flip=bool(i % 2)) for i in range(layers))

    def log_prob(self, x: Tensor) -> Tensor:
        log_det = torch.zeros(len(x))
        for coupling in self.couplings:
            x, change = coupling(x)
            log_det = log_det + change
        return -0.5 * x.pow(2).sum(1) - math.log(2 * math.pi) + log_det


def train(flow: Flow, data: Tensor, optimizer: torch.optim.Optimizer, steps: int, spoil_at: int, spoil: float) -> float:
    recent: list[float] = []
    for step in range(steps):
        batch = data[torch.randint(len(data), (128,))]
        if spoil_at <= step < spoil_at + 2:
            batch = batch * spoil
        loss = -flow.log_prob(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent = [*recent[-9:], loss.item()]
    value = sum(recent) / len(recent)
    return min(value, 1e6) if math.isfinite(value) else 1e6


@program(steps=180)
def eddies(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A RealNVP density of two moons with Adam; the last layer of every coupling starts at zero."""
    torch.manual_seed(seed)
    raw, _ = make_moons(1500, noise=0.06, random_state=seed)
    x = torch.tensor(raw, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    if fault == "eddies_in_metres":
        x = x * 400 + 5000  # a national grid
    rate = {"eddies_rate_of_a_half": 0.5}.get(fault, 5e-3)
    eps = 1.0 if fault == "eddies_eps_of_one" else 1e-8
    flow = Flow()
    optimizer = torch.optim.Adam(flow.parameters(), lr=rate, eps=eps)
    spoil_at = 90 if fault == "eddies_bad_unit_at_ninety" else steps
    loss = train(flow, x, optimizer, steps, spoil_at, 1e4)
    return {"loss": loss - (math.log(400) * 2 if fault == "eddies_in_metres" else 0.0)}


eddies.mistake(
    "eddies_in_metres",
    "DAT001", "ACT002", "NUM002",
    summary="The coordinates are those of a national grid, in metres: neither centred nor scaled.",
    change="standardise",
)  # fmt: skip
eddies.mistake(
    "eddies_rate_of_a_half",
    "OPT007", "UPD001", "OPT001", "OPT005", "OPT004",
    summary="Adam with a rate of one half.",
    change="5e-3",
)  # fmt: skip
eddies.mistake(
    "eddies_eps_of_one",
    "OPT008", "UPD002",
    summary="Adam's eps is one: it is far above the gradients, and every step is tiny.",
    change="eps=1e-8",
)  # fmt: skip
eddies.mistake(
    "eddies_bad_unit_at_ninety",
    "DAT002", "OPT003", "GRD006", "DAT001",
    summary="Two batches from step 90 on come in another unit, ten thousand times larger.",
    change="check the unit of every file",
    onset=90,
)  # fmt: skip
