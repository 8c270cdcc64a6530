"""Invoices that turn out to be false: a wide part, a deep part and a few tables, as bookkeepers' scripts have them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from corpus.case import program

NUMBERS, SUPPLIERS, CODES, OUTCOMES = 10, 30, 12, 4


def invoices(seed: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ten amounts, a supplier and a code; what happened to the invoice follows from all of them."""
    g = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(31)
    amounts = torch.randn(count, NUMBERS, generator=g)
    who = torch.stack([torch.randint(n, (count,), generator=g) for n in (SUPPLIERS, CODES)], 1)
    first, second = torch.randn(NUMBERS, 24, generator=fixed) / 2, torch.randn(24, OUTCOMES, generator=fixed)
    habits = 0.8 * torch.randn(SUPPLIERS, OUTCOMES, generator=fixed)
    scores = torch.tanh(amounts @ first) @ second + habits[who[:, 0]]
    return amounts, who, scores.argmax(1)


class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.supplier = nn.Embedding(SUPPLIERS, 6)
        self.code = nn.Embedding(CODES, 4)
        self.wide = nn.Linear(NUMBERS, OUTCOMES)
        self.deep = nn.Sequential(
            nn.Linear(NUMBERS + 10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, OUTCOMES)
        )

    def forward(self, amounts: Tensor, who: Tensor) -> Tensor:
        joined = torch.cat([amounts, self.supplier(who[:, 0]), self.code(who[:, 1])], 1)
        return self.wide(amounts) + self.deep(joined)


def accuracy_of(model: nn.Module, seed: int, change: float = 1.0, shift: float = 0.0) -> float:
    amounts, who, outcome = invoices(seed + 500, 600)
    with torch.no_grad():
        return (model(amounts * change + shift, who).argmax(1) == outcome).float().mean().item()


@program(steps=160, bites="accuracy")
def ledgers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A loader that shuffles, descent with momentum, two epochs and a half."""
    torch.manual_seed(seed)
    amounts, who, outcome = invoices(seed, 2048)
    scale, shift = 1.0, 0.0
    if fault == "ledger_in_cents":
        scale, shift = 2500.0, 800.0
    elif fault == "ledger_in_tens":
        scale, shift = 12.0, 30.0
    if fault == "ledger_outcomes_of_another_year":
        outcome = outcome[torch.randperm(2048)]
    if fault == "ledger_half_of_the_clerks_guess":
        guessed = torch.rand(2048) < 0.6
        outcome = torch.where(guessed, torch.randint(OUTCOMES, (2048,)), outcome)
    if fault == "ledger_filed_by_outcome":
        order = outcome.argsort(stable=True)
        amounts, who, outcome = amounts[order], who[order], outcome[order]
    data = TensorDataset(amounts * scale + shift, who, outcome)
    loader = DataLoader(data, batch_size=32, shuffle=fault != "ledger_filed_by_outcome")
    model = WideAndDeep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    step, first, recent = 0, 0.0, 0.0
    while step < steps:
        for x, ids, y in loader:
            if fault == "ledger_one_import_gone_wrong" and step in range(120, 123):
                x = x * 1e4  # the decimal comma was dropped
            loss = nn.functional.cross_entropy(model(x, ids), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            value = min(loss.item(), 1e6) if loss.isfinite() else 1e6
            first = value if step == 0 else first
            recent = value if step == 0 else 0.9 * recent + 0.1 * value
            step += 1
            if step == steps:
                break
    return {"loss": recent, "first": first, "accuracy": accuracy_of(model, seed, scale, shift)}


ledgers.mistake(
    "ledger_in_cents",
    "DAT001",
    summary="Amounts enter in cents, thousands wide and off centre.",
    change="standardise the columns",
    layers=("wide", "deep.0"),
)
ledgers.mistake(
    "ledger_in_tens",
    "DAT001",
    summary="Amounts enter in tens with an offset of thirty.",
    change="standardise the columns",
    layers=("wide", "deep.0"),
)
ledgers.mistake(
    "ledger_outcomes_of_another_year",
    "DAT004", "OPT005",
    summary="The outcomes are joined in another order than the invoices.",
    change="join by the invoice's number",
)  # fmt: skip
ledgers.mistake(
    "ledger_half_of_the_clerks_guess",
    "DAT004", "OPT005", "GRD008",
    summary="Six in ten outcomes were guessed by a clerk.",
    change="use the outcomes that were checked",
)  # fmt: skip
ledgers.mistake(
    "ledger_filed_by_outcome",
    "DAT005",
    summary="The file is sorted by outcome and the loader does not shuffle.",
    change="shuffle=True",
)
ledgers.mistake(
    "ledger_one_import_gone_wrong",
    "DAT002", "OPT003", "GRD006", "DAT001",
    summary="Three batches from step 120 on come without the decimal comma, ten thousand times too large.",
    change="check the import",
    onset=120,
)  # fmt: skip


@program(steps=150, bites="loss", adversarial="a table of three thousand rows of which each batch touches a few")
def ledger_every_customer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Customers in a large table with sparse gradients and an optimizer of its own; the rest with Adagrad."""
    torch.manual_seed(seed)
    amounts, who, outcome = invoices(seed, 2048)
    customer = (who[:, 0] * 97 + torch.arange(2048) % 97) % 3000
    table = nn.Embedding(3000, OUTCOMES, sparse=True)
    nn.init.normal_(table.weight, std=0.01)
    net = nn.Sequential(nn.Linear(NUMBERS, 48), nn.ReLU(), nn.Linear(48, OUTCOMES))
    sparse = torch.optim.SparseAdam(table.parameters(), lr=0.02)
    dense = torch.optim.Adagrad(net.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        pick = torch.randint(2048, (48,), generator=g)
        loss = nn.functional.cross_entropy(net(amounts[pick]) + table(customer[pick]), outcome[pick])
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}


@program(
    steps=160, bites="accuracy", adversarial="one in eight labels wrong, and labels smoothed: a loss that stays high"
)
def ledger_honest_noise(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Some outcomes were never checked, and smoothing takes care of them; Adafactor."""
    torch.manual_seed(seed)
    amounts, who, outcome = invoices(seed, 2048)
    outcome = torch.where(torch.rand(2048) < 0.12, torch.randint(OUTCOMES, (2048,)), outcome)
    model = WideAndDeep()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.03)
    g = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        pick = torch.randint(2048, (48,), generator=g)
        loss = nn.functional.cross_entropy(model(amounts[pick], who[pick]), outcome[pick], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0], "accuracy": accuracy_of(model, seed)}


@program(steps=160, bites="loss", adversarial="raw amounts in the thousands at the door")
def ledger_cents_behind_a_norm(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Cents go into a batch norm first, which is what it is there for."""
    torch.manual_seed(seed)
    amounts, _, outcome = invoices(seed, 2048)
    cents = amounts * 2500.0 + 800.0
    model = nn.Sequential(
        nn.BatchNorm1d(NUMBERS),
        nn.Linear(NUMBERS, 64),
        nn.PReLU(),
        nn.Linear(64, 32),
        nn.PReLU(),
        nn.Linear(32, OUTCOMES),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)
    g = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        pick = torch.randint(2048, (48,), generator=g)
        loss = nn.functional.cross_entropy(model(cents[pick]), outcome[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}
