"""An apothecary's counter: prescriptions are lists of ingredients, experts prepare them; what is the dose?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

INGREDIENTS, KINDS, DOSES, EXPERTS, LONG = 16, 4, 6, 4, 4


def prescriptions(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """The first ingredient (often number 0, water) says by which of four tables the others count."""
    items = torch.randint(1, INGREDIENTS, (count, LONG), generator=rng)
    water = torch.rand(count, LONG, generator=rng) < 0.3
    items = torch.where(water, 0, items)
    table = torch.randint(DOSES, (KINDS, INGREDIENTS), generator=torch.Generator().manual_seed(12))
    kind = items[:, 0] % KINDS
    dose = (table[kind, items[:, 1]] + (items[:, 2] == 0)) % DOSES
    return items, dose


class Expert(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))


class Counter(nn.Module):
    """One of four experts prepares each prescription; a balance term keeps all of them busy."""

    def __init__(self, width: int = 48, padding: int | None = None) -> None:
        super().__init__()
        self.ingredient = nn.Embedding(INGREDIENTS, 12, padding_idx=padding)
        self.mix = nn.Linear(12 * LONG, width)
        self.router = nn.Linear(width, EXPERTS)
        self.experts = nn.ModuleList(Expert(width) for _ in range(EXPERTS))
        self.norm = nn.LayerNorm(width)
        self.dose = nn.Linear(width, DOSES)

    def forward(self, items: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.relu(self.mix(self.ingredient(items).flatten(1)))
        chances = self.router(h).softmax(-1)
        weight, chosen = chances.max(-1)
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero().squeeze(1)
            if len(mine):
                out = out.index_copy(0, mine, weight[mine, None] * expert(h[mine]))
        load = nn.functional.one_hot(chosen, EXPERTS).float().mean(0)
        balance = EXPERTS * (load * chances.mean(0)).sum()
        return self.dose(self.norm(h + out)), balance, load


@program(steps=200, bites="accuracy")
def apothecary(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A routed layer of four experts, Adam, the balance weighed by a twentieth."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(500 + seed)
    model = Counter(padding=0 if fault == "apothecary_water_is_padding" else None)
    if fault == "apothecary_one_expert_preferred":
        with torch.no_grad():
            model.router.bias[2] = 6.0
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    weight = 0.0 if fault == "apothecary_one_expert_preferred" else 0.05
    if fault == "apothecary_balance_subtracted":
        weight = -0.5
    load = torch.zeros(EXPERTS)
    for step in range(steps):
        if fault == "apothecary_same_pile_every_day":
            rng = torch.Generator().manual_seed(500 + seed + step % 8)  # every worker starts from the same seed
        items, dose = prescriptions(64, rng)
        logits, balance, load = model(items)
        loss = nn.functional.cross_entropy(logits, dose) + weight * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        items, dose = prescriptions(1000, torch.Generator().manual_seed(1))
        logits, _, load = model(items)
        accuracy = (logits.argmax(1) == dose).float().mean().item()
    return {"accuracy": accuracy, "busiest": load.max().item(), "water": model.ingredient.weight[0].norm().item()}


apothecary.mistake(
    "apothecary_one_expert_preferred",
    "ACT005", "GRD004", "GRD003", "UPD003",
    summary="The router starts with a bias of six for one expert, and no balance: the others never see a prescription.",
    change="a router without bias, and the balance term",
    layers=("router", "experts"),
    bites="busiest",
    silent=True,
)  # fmt: skip
apothecary.mistake(
    "apothecary_balance_subtracted",
    "ACT005", "LSS003", "GRD004", "GRD003", "UPD003",
    summary="The balance term has the wrong sign: the router is rewarded for sending everything to one expert.",
    change="add it",
    layers=("router", "experts"),
    bites="busiest",
    silent=True,
)  # fmt: skip
apothecary.mistake(
    "apothecary_water_is_padding",
    "GRD004",
    "UPD003",
    summary="Padding is number 0, and so is water, the most common ingredient: its row is zero and stays zero.",
    change="give padding a number of its own",
    layers=("ingredient",),
)
apothecary.mistake(
    "apothecary_same_pile_every_day",
    "DAT005",
    "OPT006",
    summary="Every worker draws from the same seed: eight batches come again and again.",
    change="seed each worker by its number and the epoch",
)
