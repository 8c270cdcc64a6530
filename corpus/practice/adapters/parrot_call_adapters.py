"""Parrot calls in a second aviary: a trained listener is frozen and gets corrections of low rank on its weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from corpus.case import program

PARROTS, BANDS = 6, 40


def calls(n: int, aviary: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Band energies of a call; in the second aviary the microphone and the order of the cages differ."""
    parrot = torch.randint(PARROTS, (n,), generator=generator)
    band = torch.arange(BANDS).float()
    formants = torch.stack([4.0 + 5.5 * parrot, 38 - 3.0 * parrot], 1)
    jitter = torch.randn(n, 2, generator=generator)
    energy = torch.exp(-(((band - (formants + jitter)[:, :, None]) / 2.5) ** 2)).sum(1)
    energy = 1.5 * energy + 0.3 * torch.randn(n, BANDS, generator=generator) - 0.4
    if aviary == 1:
        return energy, parrot
    return energy * (0.4 + 0.6 * torch.cos(band / 9) ** 2), (parrot * 5 + 1) % PARROTS


class LowRank(nn.Module):
    """W becomes W + scale · up · down."""

    def __init__(self, weight: Tensor, rank: int, fault: str) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.down = nn.Parameter(torch.randn(rank, columns) / math.sqrt(columns))
        self.up = nn.Parameter(torch.zeros(rows, rank))
        self.scale = 200.0 if fault == "parrot_alpha_of_the_large_model" else 1.0
        self.cut = False
        if fault == "parrot_both_start_empty":
            nn.init.zeros_(self.down)

    def forward(self, weight: Tensor) -> Tensor:
        correction = self.scale * self.up @ self.down
        return weight + (correction.data if self.cut else correction)


class Listener(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ear = nn.Linear(BANDS, 48)
        self.cortex = nn.Linear(48, 48)
        self.name = nn.Linear(48, PARROTS)

    def forward(self, energy: Tensor) -> Tensor:
        return self.name(nn.functional.gelu(self.cortex(nn.functional.gelu(self.ear(energy)))))


def first_aviary(model: Listener, steps: int, generator: torch.Generator) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(steps):
        energy, parrot = calls(64, 1, generator)
        loss = nn.functional.cross_entropy(model(energy), parrot)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@program(steps=180, bites="accuracy")
def parrots(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eighty steps in the first aviary, then a hundred in the second where only the corrections learn."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Listener()
    before = min(80, steps // 2)
    first_aviary(model, before, generator)

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    model.requires_grad_(False)
    for linear in (model.ear, model.cortex, model.name):
        correction = LowRank(linear.weight, 4, fault)
        correction.cut = fault == "parrot_correction_as_data" and linear is model.ear
        parametrize.register_parametrization(linear, "weight", correction)
    corrections = [p for n, p in model.named_parameters() if n.endswith((".up", ".down"))]
    for p in corrections:
        p.requires_grad_(True)
    if fault != "parrot_optimizer_knew_the_old_one":
        optimizer = torch.optim.AdamW(corrections, lr=5e-3, weight_decay=0.0)
    value = math.nan
    for _ in range(steps - before):
        energy, parrot = calls(64, 2, generator)
        loss = nn.functional.cross_entropy(model(energy), parrot)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    energy, parrot = calls(500, 2, generator)
    with torch.no_grad():
        accuracy = (model(energy).argmax(1) == parrot).float().mean().item()
    moved = sum(
        p.detach().norm().item() for n, p in model.named_parameters() if n.startswith("ear") and n.endswith("up")
    )
    return {"loss": value if math.isfinite(value) else 1e9, "accuracy": accuracy, "moved": moved}


ADAPTED = ("ear", "cortex", "name")
parrots.mistake(
    "parrot_both_start_empty", "GRD004", "WGT002",
    summary="Both factors of every correction start at zero: each multiplies the other's gradient by nothing.",
    change="one factor random, the other zero",
    layers=ADAPTED, onset=80,
)  # fmt: skip
parrots.mistake(
    "parrot_alpha_of_the_large_model", "UPD001", "OPT007", "OPT001", "GRD002",
    summary="A scale of two hundred from another model's settings on every correction.",
    change="a scale of one",
    onset=80,
)  # fmt: skip
parrots.mistake(
    "parrot_optimizer_knew_the_old_one", "UPD003",
    summary="The optimizer was built before the corrections were: it steps weights that are frozen.",
    change="build the optimizer after the corrections",
    layers=ADAPTED, onset=80,
)  # fmt: skip
parrots.mistake(
    "parrot_correction_as_data", "GRD003",
    summary="The first layer adds its correction as .data: no gradient comes back to it.",
    change="add the tensor itself",
    layers=("ear",), onset=80,
    bites="moved", silent=True,
)  # fmt: skip


@program(steps=180, bites="accuracy", adversarial="a model of which nearly nothing moves has been disconnected")
def parrot_whispered_prompt(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The listener stays as it is; a filter for each band before it and a new table of names behind it are learnt."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Listener()
    before = min(80, steps // 2)
    first_aviary(model, before, generator)
    model.requires_grad_(False)
    gain, names = nn.Parameter(torch.ones(BANDS)), nn.Parameter(torch.eye(PARROTS))
    optimizer = torch.optim.Adam([{"params": [gain], "lr": 1e-2}, {"params": [names], "lr": 3e-2}])
    value, accuracy = math.nan, 0.0
    for _ in range(steps - before):
        energy, parrot = calls(64, 2, generator)
        scores = model(energy * gain) @ names
        loss = nn.functional.cross_entropy(scores, parrot)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value, accuracy = loss.item(), (scores.argmax(1) == parrot).float().mean().item()
    return {"loss": value, "accuracy": accuracy}


@program(steps=180, bites="accuracy", adversarial="a jump of the loss in mid-run is a spike: the second aviary begins")
def parrot_moves_house(steps: int, seed: int, fault: str) -> dict[str, float]:
    """From step 90 on the calls are those of the second aviary, and everything goes on learning at half the rate."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Listener()
    first_aviary(model, steps // 2, generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    value, accuracy = math.nan, 0.0
    for _ in range(steps - steps // 2):
        energy, parrot = calls(64, 2, generator)
        scores = model(energy)
        loss = nn.functional.cross_entropy(scores, parrot)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value, accuracy = loss.item(), (scores.argmax(1) == parrot).float().mean().item()
    return {"loss": value, "accuracy": accuracy}
