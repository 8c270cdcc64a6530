"""Does this molecule fit the enzyme: attention over the atoms of small graphs, one script per optimizer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

ATOMS, KINDS, CLASSES = 10, 6, 3


def molecules(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random ring-like graphs; the class depends on which kinds of atoms are neighbours."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(KINDS, (n, ATOMS), generator=g)
    ring = torch.eye(ATOMS).roll(1, 0) + torch.eye(ATOMS).roll(-1, 0)
    extra = (torch.rand(n, ATOMS, ATOMS, generator=g) < 0.08).float()
    bonds = ((ring + extra + extra.transpose(1, 2)) > 0).float()
    first, second = (kind == 0).float(), (kind == 1).float()
    contacts = torch.einsum("ni,nij,nj->n", first, bonds, second)
    label = (contacts > 0).long() + (contacts > 1).long()
    return kind, bonds + torch.eye(ATOMS), label


class Bonded(nn.Module):
    """Attention among bonded atoms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, bonds: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        score = (q @ k.transpose(1, 2)) / math.sqrt(q.shape[-1])
        weight = score.masked_fill(bonds == 0, -1e9).softmax(-1)
        return h + torch.tanh(self.mix(weight @ v))


class Docking(nn.Module):
    def __init__(self, width: int = 24, rounds: int = 2) -> None:
        super().__init__()
        self.atom = nn.Embedding(KINDS, width)
        self.rounds = nn.ModuleList(Bonded(width) for _ in range(rounds))
        self.read = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def forward(self, kind: Tensor, bonds: Tensor) -> Tensor:
        h = self.atom(kind)
        for bonded in self.rounds:
            h = bonded(h, bonds)
        return self.read(h.sum(1) / 3)


def score(model: nn.Module, seed: int) -> float:
    kind, bonds, label = molecules(400, seed + 900)
    with torch.no_grad():
        return (model(kind, bonds).argmax(1) == label).float().mean().item()


@program(steps=160, bites="accuracy")
def enzymes(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adam on fresh molecules, a rate of three thousandths."""
    torch.manual_seed(seed)
    model = Docking()
    rate = {"enzyme_rate_of_a_third": 0.3, "enzyme_rate_of_a_millionth": 1e-6, "enzyme_rate_a_little_high": 0.06}
    optimizer = torch.optim.Adam(model.parameters(), lr=rate.get(fault, 3e-3))
    first, recent = 0.0, 0.0
    for step in range(steps):
        if fault == "enzyme_second_phase_too_hot" and step == 90:
            for group in optimizer.param_groups:
                group["lr"] *= 100  # meant: divided by a hundred for the second phase
        kind, bonds, label = molecules(48, 10_000 * seed + step)
        loss = functional.cross_entropy(model(kind, bonds), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        recent = loss.item() if step == 0 else 0.9 * recent + 0.1 * loss.item()
    return {"loss": recent, "first": first, "accuracy": score(model, seed)}


enzymes.mistake(
    "enzyme_rate_of_a_third",
    "OPT007", "UPD001", "OPT001", "OPT004", "GRD005",
    summary="Adam runs at a rate of 0.3.",
    change="0.003",
)  # fmt: skip
enzymes.mistake(
    "enzyme_rate_a_little_high",
    "OPT007", "UPD001", "OPT001", "OPT004", "GRD005",
    summary="Adam runs at a rate of 0.06, twenty times too high for this model.",
    change="0.003",
)  # fmt: skip
enzymes.mistake(
    "enzyme_rate_of_a_millionth",
    "OPT007", "UPD002",
    summary="The rate is 1e-6 and nothing is learned in reasonable time.",
    change="0.003",
)  # fmt: skip
enzymes.mistake(
    "enzyme_second_phase_too_hot",
    "OPT007", "UPD001", "OPT001", "OPT003",
    summary="At step 90 the second phase multiplies the rate by a hundred instead of dividing.",
    change="divide",
    onset=90,
)  # fmt: skip


@program(steps=160, bites="accuracy")
def enzyme_in_one_cycle(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One cycle of the rate over the run, descent with momentum, one round of attention."""
    torch.manual_seed(seed)
    model = Docking(rounds=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    length = 12 if fault == "enzyme_cycle_counted_in_epochs" else steps + 1
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.15, total_steps=length)
    first, recent = 0.0, 0.0
    for step in range(steps):
        kind, bonds, label = molecules(48, 10_000 * seed + step)
        loss = functional.cross_entropy(model(kind, bonds), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 < length:
            schedule.step()
        first = loss.item() if step == 0 else first
        recent = loss.item() if step == 0 else 0.9 * recent + 0.1 * loss.item()
    return {"loss": recent, "first": first, "accuracy": score(model, seed)}


enzyme_in_one_cycle.mistake(
    "enzyme_cycle_counted_in_epochs",
    "OPT007", "UPD002",
    summary="The cycle is as long as there are epochs but moves on with every batch: after twelve it is over.",
    change="the number of batches",
)  # fmt: skip


@program(steps=150, bites="accuracy", adversarial="three classes of which one is rare, and batches without it")
def enzyme_rare_fit(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The rare class counts three times in the loss; AdamW in its AMSGrad form."""
    torch.manual_seed(seed)
    model = Docking(rounds=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, amsgrad=True)
    weight = torch.tensor([1.0, 1.0, 3.0])
    history: list[float] = []
    for step in range(steps):
        kind, bonds, label = molecules(32, 20_000 * seed + step)
        loss = functional.cross_entropy(model(kind, bonds), label, weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0], "accuracy": score(model, seed)}


@program(steps=40, bites="accuracy", adversarial="many evaluations of one batch before each step, and a loss near zero")
def enzyme_second_order(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One batch of two hundred molecules, fitted by LBFGS with a line search."""
    torch.manual_seed(seed)
    model = Docking(width=16, rounds=1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=4, line_search_fn="strong_wolfe")
    kind, bonds, label = molecules(200, seed)
    history: list[float] = []

    def closure() -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(kind, bonds), label)
        loss.backward()
        return loss.item()

    for _ in range(steps):
        history.append(float(optimizer.step(closure)))
    return {"loss": history[-1], "first": history[0], "accuracy": score(model, seed)}


@program(steps=150, bites="accuracy")
def enzyme_in_any_solvent(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Averaged descent (ASGD) with a warm-up by hand and a small penalty on the length of the read-out."""
    torch.manual_seed(seed)
    model = Docking(rounds=1)
    optimizer = torch.optim.ASGD(
        [{"params": [*model.atom.parameters(), *model.rounds.parameters()], "lr": 0.1},
         {"params": model.read.parameters(), "lr": 0.2}], lambd=1e-5,
    )  # fmt: skip
    bases = [group["lr"] for group in optimizer.param_groups]
    history: list[float] = []
    for step in range(steps):
        for group, base in zip(optimizer.param_groups, bases, strict=True):
            group["lr"] = base * min(1.0, (step + 1) / 15)
        kind, bonds, label = molecules(48, 30_000 * seed + step)
        loss = functional.cross_entropy(model(kind, bonds), label)
        penalty = sum(p.square().sum() for p in model.read.parameters())
        optimizer.zero_grad()
        (loss + 1e-4 * penalty).backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0], "accuracy": score(model, seed)}
