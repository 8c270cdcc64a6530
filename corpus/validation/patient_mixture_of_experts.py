"""Who sees which patient: a layer of experts with a router that sends every patient to one of them."""

from __future__ import annotations

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from corpus.case import program

EXPERTS, SIGNS, URGENCIES = 4, 14, 5


def patients_of_a_night(seed: int, n: int = 900) -> tuple[Tensor, Tensor]:
    """Four departments with rules of their own; the department can be read off the signs."""
    g = torch.Generator().manual_seed(seed + 40)
    department = torch.randint(4, (n,), generator=g)
    centres = 1.2 * torch.randn(4, SIGNS, generator=g)
    x = centres[department] + torch.randn(n, SIGNS, generator=g)
    rules = torch.randn(4, SIGNS, URGENCIES, generator=g)
    scores = torch.einsum("ni,nij->nj", x - centres[department], rules[department])
    return x, scores.argmax(1)


class Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 32)
        self.down = nn.Linear(32, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(fn.silu(self.up(x)))


class Ward(nn.Module):
    def __init__(self, width: int = 24, bias: float = 0.0) -> None:
        super().__init__()
        self.intake = nn.Linear(SIGNS, width)
        self.router = nn.Linear(width, EXPERTS)
        self.experts = nn.ModuleList(Expert(width) for _ in range(EXPERTS))
        self.norm = nn.LayerNorm(width)
        self.verdict = nn.Linear(width, URGENCIES)
        with torch.no_grad():
            self.router.bias.zero_()
            self.router.bias[2] = bias

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.relu(self.intake(x))
        p = self.router(h).softmax(-1)
        weight, chosen = p.max(-1)
        out = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            here = chosen == i
            if here.any():
                out[here] = weight[here, None] * expert(h[here])
        load = fn.one_hot(chosen, EXPERTS).float().mean(0)
        balance = EXPERTS * (load * p.mean(0)).sum()
        return self.verdict(self.norm(h + out)), balance, load


@program(steps=160, bites="idle")
def triage(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Top-one routing among four experts with a balance term, Adam."""
    torch.manual_seed(seed)
    x, y = patients_of_a_night(seed)
    ward = Ward(bias=8.0 if fault == "triage_everyone_to_the_third" else 0.0)
    optimizer = torch.optim.Adam(ward.parameters(), lr=4e-3)
    first, smooth = 0.0, 0.0
    loads = torch.zeros(EXPERTS)
    for step in range(steps):
        pick = torch.randint(len(x), (48,))
        logits, balance, load = ward(x[pick])
        strength = 0.05
        if fault == "triage_everyone_to_the_third":
            strength = 0.0
        if fault == "triage_balance_rewarded":
            strength = -0.5
        if fault == "triage_balance_turns_over" and step >= 60:
            strength = -1.0  # annealed past zero
        loss = fn.cross_entropy(logits, y[pick]) + strength * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loads = load if step == 0 else 0.8 * loads + 0.2 * load
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    return {"loss": smooth, "first": first, "idle": float((loads < 0.02).sum()), "least": loads.min().item()}


triage.mistake(
    "triage_everyone_to_the_third",
    "ACT005", "GRD003", "GRD004",
    summary="The router begins with a bias for the third expert and no term asks for balance: three never work.",
    change="no bias, and a balance term",
    layers=("router", "experts"),
    silent=True,
)  # fmt: skip
triage.mistake(
    "triage_balance_rewarded",
    "ACT005", "LSS003", "GRD003", "GRD004",
    summary="The balance term has the wrong sign: it is rewarded when all go to one expert.",
    change="add the term instead of subtracting it",
    layers=("router", "experts"),
    silent=True,
)  # fmt: skip
triage.mistake(
    "triage_balance_turns_over",
    "ACT005", "LSS003", "GRD003", "GRD004",
    summary="The weight of the balance term is annealed past zero at step 60.",
    change="stop at zero",
    layers=("router", "experts"),
    onset=60,
    silent=True,
)  # fmt: skip


@program(steps=150, adversarial="the load of the experts is uneven, since the patients are: router collapse")
def triage_rare_departments(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Experts chosen by a known table of departments, most patients in one of them."""
    torch.manual_seed(seed)
    x, y = patients_of_a_night(seed)
    g = torch.Generator().manual_seed(seed)
    department = torch.multinomial(torch.tensor([0.7, 0.15, 0.1, 0.05]), len(x), True, generator=g)
    experts = nn.ModuleList(nn.Sequential(nn.Linear(SIGNS, 24), nn.SiLU(), nn.Linear(24, URGENCIES)) for _ in range(4))
    optimizer = torch.optim.Adam(experts.parameters(), lr=5e-3)
    first, smooth = 0.0, 0.0
    for step in range(steps):
        pick = torch.randint(len(x), (64,))
        loss = torch.tensor(0.0)
        for i, expert in enumerate(experts):
            mine = pick[department[pick] == i]
            if len(mine):
                loss = loss + fn.cross_entropy(expert(x[mine]), y[mine], reduction="sum") / len(pick)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    return {"loss": smooth, "first": first}


@program(steps=150)
def triage_all_are_asked(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Soft routing: every expert sees every patient, the router only weighs."""
    torch.manual_seed(seed)
    x, y = patients_of_a_night(seed)
    gate = nn.Linear(SIGNS, EXPERTS)
    experts = nn.ModuleList(nn.Sequential(nn.Linear(SIGNS, 24), nn.Tanh(), nn.Linear(24, URGENCIES)) for _ in range(4))
    optimizer = torch.optim.AdamW([*gate.parameters(), *experts.parameters()], lr=5e-3)
    first, smooth = 0.0, 0.0
    for step in range(steps):
        pick = torch.randint(len(x), (64,))
        p = gate(x[pick]).softmax(-1)
        logits = sum(p[:, i : i + 1] * expert(x[pick]) for i, expert in enumerate(experts))
        assert isinstance(logits, Tensor)
        loss = fn.cross_entropy(logits, y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    return {"loss": smooth, "first": first}
