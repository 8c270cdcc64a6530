"""A mixture of six experts sorts parcels: a router sends every parcel to one of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as its users write it
from torch import Tensor, nn

from corpus.case import program

EXPERTS, CLASSES, FEATURES = 6, 8, 20


def parcels(seed: int, count: int = 2400) -> tuple[Tensor, Tensor]:
    """Six regions, each with a linear rule of its own for the class of a parcel."""
    g = torch.Generator().manual_seed(seed + 400)
    centres = 2.5 * torch.randn(EXPERTS, FEATURES, generator=g)
    rules = torch.randn(EXPERTS, FEATURES, CLASSES, generator=g)
    region = torch.randint(EXPERTS, (count,), generator=g)
    offset = torch.randn(count, FEATURES, generator=g)
    label = torch.einsum("nf,nfc->nc", offset, rules[region]).argmax(1)
    return (centres[region] + offset) / 2.7, label


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(FEATURES, EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x).softmax(-1)


class Dispatch(nn.Module):
    def __init__(self, weigh: bool = True) -> None:
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES)) for _ in range(EXPERTS)
        )
        self.weigh = weigh

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates = self.router(x)
        gate, chosen = gates.max(-1)
        out = torch.zeros(len(x), CLASSES)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]))
        if self.weigh:
            out = out * gate[:, None] * 2
        return out, gates, chosen


@program(steps=220, bites="accuracy")
def dispatch(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Top-one routing with a balance term, AdamW."""
    torch.manual_seed(seed)
    x, y = parcels(seed)
    model = Dispatch(weigh=fault != "dispatch_unweighted")
    if fault == "dispatch_favourite":
        with torch.no_grad():
            model.router.scores.bias[4] = 7.0
    balance = {"dispatch_favourite": 0.0, "dispatch_unweighted": 0.0}.get(fault, 0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    start = model.router.scores.weight.detach().clone()
    train_x, train_y = x[:2000], y[:2000]
    busiest, loss = 0.0, torch.tensor(0.0)
    for step in range(steps):
        if fault == "dispatch_balance_upside_down" and step == 60:
            balance = -2.0
        rows = torch.randint(2000, (128,))
        out, gates, chosen = model(train_x[rows])
        share = F.one_hot(chosen, EXPERTS).float().mean(0)
        uneven = EXPERTS * (share * gates.mean(0)).sum()
        loss = F.cross_entropy(out, train_y[rows]) + balance * uneven
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        busiest = share.max().item()
    with torch.no_grad():
        right = (model(x[2000:])[0].argmax(1) == y[2000:]).float().mean().item()
    moved = (model.router.scores.weight - start).norm().item()
    return {"accuracy": right, "busiest": busiest, "router_moved": moved, "loss": loss.item()}


dispatch.mistake(
    "dispatch_favourite",
    "ACT005", "GRD003", "GRD004",
    summary="No balance term, and a bias that favours one expert: the others never see a parcel.",
    change="bias of zero, balance term",
    layers=("router", "experts"),
    bites="busiest",
    silent=True,
)  # fmt: skip
dispatch.mistake(
    "dispatch_balance_upside_down",
    "ACT005", "LSS003",
    summary="From step 60 on the balance term has the wrong sign: it pays for sending everything to one expert.",
    change="add it",
    layers=("router", "experts"),
    onset=60,
    bites="busiest",
    silent=True,
)  # fmt: skip
dispatch.mistake(
    "dispatch_unweighted",
    "GRD004", "GRD003", "UPD003",
    summary="The outputs are not multiplied by the gate: argmax has no gradient, the router never learns.",
    change="weigh the experts by their gates",
    layers=("router",),
    bites="router_moved",
    silent=True,
)  # fmt: skip
