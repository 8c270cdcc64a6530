"""A mixture of experts: wagons come from several regions, and each region has a law of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

REGIONS, FEATURES = 4, 10


def wagons(count: int, seed: int, shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)) -> tuple[Tensor, Tensor]:
    """Which of three tracks? A linear rule, another one for every region; the region shows in the first features."""
    laws = torch.randn(len(shares), FEATURES, 3, generator=torch.Generator().manual_seed(77))
    g = torch.Generator().manual_seed(seed)
    region = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=g)
    x = torch.randn(count, FEATURES, generator=g)
    y = torch.einsum("nf,nfc->nc", x, laws[region]).argmax(1)
    return torch.cat([x, 2.0 * nn.functional.one_hot(region, len(shares))], 1), y


class Yard(nn.Module):
    """The router picks `take` experts for every wagon; their answers are weighted by its confidence."""

    def __init__(self, inputs: int, experts: int, take: int, weighted: bool = True) -> None:
        super().__init__()
        self.router = nn.Linear(inputs, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, 24), nn.ReLU(), nn.Linear(24, 24)) for _ in range(experts)
        )
        self.entry = nn.Linear(24, 3)
        self.take, self.weighted = take, weighted
        self.balance = torch.zeros(())
        self.load = torch.zeros(experts)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        if self.training:
            scores = scores + 0.3 * torch.randn_like(scores)
        chance = scores.softmax(-1)
        weight, chosen = chance.topk(self.take, -1)
        mixed = x.new_zeros(len(x), 24)
        count = len(self.experts)
        for number, expert in enumerate(self.experts):
            rows, slot = (chosen == number).nonzero(as_tuple=True)
            if len(rows) == 0:
                continue
            answer = expert(x[rows])
            mixed = mixed.index_add(0, rows, answer * weight[rows, slot, None] if self.weighted else answer)
        used = nn.functional.one_hot(chosen, count).float().sum(1).mean(0) / self.take
        self.balance = count * (used * chance.mean(0)).sum()
        self.load = used.detach()
        return self.entry(mixed)


def judge(model: Yard, x: Tensor, y: Tensor) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean().item()
    return {"accuracy": right, "busiest": model.load.max().item()}


@program(steps=180, bites="accuracy")
def switchyard(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One expert of four for every wagon, with a loss that keeps them equally busy."""
    torch.manual_seed(seed)
    x, y = wagons(3000, seed)
    model = Yard(x.shape[1], experts=4, take=1, weighted=fault != "yard_answers_not_weighted")
    if fault == "yard_main_line_only":
        model.router.bias.data[2] = 8.0
    balance = {"yard_main_line_only": 0.0, "yard_rewards_imbalance": -0.3}.get(fault, 0.05)
    if fault == "yard_answers_not_weighted":
        balance = 0.0
    first_router = model.router.weight.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    loss = torch.zeros(())
    for step in range(steps):
        rows = torch.randint(2400, (96,))
        if fault == "yard_loses_balance" and step >= 60:
            balance = -1.0
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows]) + balance * model.balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved = (model.router.weight.detach() - first_router).norm().item()
    return judge(model, x[2400:], y[2400:]) | {"loss": loss.item(), "router_moved": moved}


switchyard.mistake(
    "yard_main_line_only",
    "ACT005", "GRD004", "GRD003", "UPD003",
    summary="The router starts with a bias of eight for one expert, and nothing balances the load.",
    change="no bias, and the balancing loss",
    layers=("router", "experts"),
    bites="busiest",
    silent=True,
)  # fmt: skip
switchyard.mistake(
    "yard_rewards_imbalance",
    "ACT005", "LSS003",
    summary="The balancing loss has the wrong sign: it rewards a router that uses one expert.",
    change="add it",
    layers=("router", "experts"),
    bites="busiest",
    silent=True,
)  # fmt: skip
switchyard.mistake(
    "yard_loses_balance",
    "ACT005", "LSS003", "GRD009",
    summary="From step 60 the schedule of the balancing weight is below zero: the load falls onto one expert.",
    change="a weight that stays above zero",
    layers=("router", "experts"),
    onset=60,
    bites="busiest",
    silent=True,
)  # fmt: skip
switchyard.mistake(
    "yard_answers_not_weighted",
    "GRD003", "UPD003", "GRD004",
    summary="Experts' answers are not multiplied by the router's confidence, so that no gradient reaches it.",
    change="weight the answers",
    layers=("router",),
    bites="router_moved",
    silent=True,
)  # fmt: skip


@program(steps=170, bites="accuracy", adversarial="experts with unequal load mean that the router has collapsed")
def switchyard_uneven_regions(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two of six experts for every wagon; regions are of unequal size, so that experts are as well."""
    torch.manual_seed(seed)
    x, y = wagons(3000, seed, shares=(0.45, 0.2, 0.15, 0.1, 0.1))
    model = Yard(x.shape[1], experts=6, take=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.01)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(2400, (128,))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows]) + 0.02 * model.balance
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
    return judge(model, x[2400:], y[2400:]) | {"loss": loss.item()}


class SoftYard(nn.Module):
    """All experts answer, a softmax mixes them."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.gate = nn.Linear(inputs, 4)
        self.first = nn.Parameter(torch.randn(4, inputs, 24) * inputs**-0.5)
        self.second = nn.Parameter(torch.randn(4, 24, 3) * 24**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.einsum("nf,efh->enh", x, self.first).relu()
        answers = torch.einsum("enh,ehc->enc", hidden, self.second)
        return torch.einsum("ne,enc->nc", self.gate(x).softmax(-1), answers)


@program(steps=170, bites="accuracy")
def switchyard_soft(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A dense mixture with stacked expert weights, SGD with momentum."""
    torch.manual_seed(seed)
    x, y = wagons(3000, seed)
    model = SoftYard(x.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(2400, (96,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = (model(x[2400:]).argmax(1) == y[2400:]).float().mean().item()
    return {"loss": loss.item(), "accuracy": right}
