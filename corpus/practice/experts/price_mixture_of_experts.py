"""Prices in a bazaar: sparse mixtures of experts over tables of goods, and recommenders for the stalls."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

TRAITS, EXPERTS = 14, 4


def goods(seed: int, count: int = 1800) -> tuple[Tensor, Tensor, Tensor]:
    """Four trades, each with another way to come to a price; the trade shows in the first traits."""
    g = torch.Generator().manual_seed(640 + seed)
    trade = torch.randint(4, (count,), generator=g)
    x = torch.randn(count, TRAITS, generator=g)
    x[:, :4] = 0.5 * x[:, :4] + 1.5 * nn.functional.one_hot(trade, 4)
    ways = torch.randn(4, TRAITS, generator=g) / 2
    price = (x * ways[trade]).sum(1) + torch.sin(2 * x[:, 5] + trade)
    return x, (price - price.mean()) / price.std(), trade


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(TRAITS, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Bazaar(nn.Module):
    """Each good is sent to its best expert; the loads are kept for the balance term."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(TRAITS, EXPERTS)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.price = nn.Linear(16, 1)
        self.balance = torch.tensor(0.0)
        self.load = torch.zeros(EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        chance = self.router(x).softmax(-1)
        best, choice = chance.max(-1)
        mixed = torch.zeros(len(x), 16)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().squeeze(1)
            if len(rows):
                mixed = mixed.index_add(0, rows, expert(x[rows]) * best[rows, None])
        self.load = nn.functional.one_hot(choice, EXPERTS).float().mean(0)
        self.balance = EXPERTS * (self.load * chance.mean(0)).sum()
        return self.price(torch.relu(mixed)).squeeze(1)


@program(steps=150, bites="unused")
def bazaar_experts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four experts, one for each good, with a balance term in the loss."""
    torch.manual_seed(seed)
    x, y, _ = goods(seed)
    model = Bazaar()
    if fault == "bazaar_one_stall_open":
        with torch.no_grad():
            model.router.bias[2] = 7.0
    weight = 0.0 if fault == "bazaar_one_stall_open" else 0.02
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    for step in range(steps):
        if fault == "bazaar_balance_subtracted" and step == 60:
            weight = -3.0  # "the balance is to be large": the sign of the new release
        rows = torch.randint(1500, (64,))
        loss = (model(x[rows]) - y[rows]).square().mean() + weight * model.balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = (model(x[1500:]) - y[1500:]).square().mean().item()
    return {"loss": error, "unused": (model.load < 0.02).float().sum().item()}


bazaar_experts.mistake(
    "bazaar_one_stall_open",
    "ACT005",
    summary="The router begins with a bias for the third expert and no balance term: three experts get nothing.",
    change="no bias, a balance term",
    layers=("router",),
    silent=True,
)
bazaar_experts.mistake(
    "bazaar_balance_subtracted",
    "ACT005",
    summary="From step 60 on the balance term is subtracted: nearly all goods go to one expert.",
    change="add the balance term",
    layers=("router",),
    onset=60,
    silent=True,
)


class Stalls(nn.Module):
    """Two towers of embeddings: who buys at which stall?"""

    def __init__(self, people: int, stalls: int) -> None:
        super().__init__()
        self.person, self.stall = nn.Embedding(people, 12), nn.Embedding(stalls, 12)
        nn.init.normal_(self.person.weight, std=0.1)
        nn.init.normal_(self.stall.weight, std=0.1)
        self.taste = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, who: Tensor, where: Tensor) -> Tensor:
        a, b = self.person(who), self.stall(where)
        return (a * b).sum(-1) + self.taste(torch.cat([a, b], -1)).squeeze(-1)


def purchases(seed: int, people: int, stalls: int, count: int = 6000) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(820)  # the town is the same for all seeds
    tastes, offers = torch.randn(people, 3, generator=g), torch.randn(stalls, 3, generator=g)
    popular = torch.randn(stalls, generator=g)
    g.manual_seed(821 + seed)
    who = (torch.rand(count, generator=g) ** 1.5 * people).long()
    where = torch.randint(stalls, (count,), generator=g)
    chance = torch.sigmoid(2 * (tastes[who] * offers[where]).sum(1) + 2 * popular[where])
    return who, where, (torch.rand(count, generator=g) < chance).float()


@program(steps=200, bites="loss")
def bazaar_visits(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A recommender for 60 people and 30 stalls; Adam, decay on the towers only."""
    torch.manual_seed(seed)
    who, where, bought = purchases(seed, 60, 30)
    model = Stalls(60, 30)
    tables = [*model.person.parameters(), *model.stall.parameters()]
    table_decay = 15.0 if fault == "bazaar_decay_on_the_tables" else 1e-4
    optimizer = torch.optim.AdamW(
        [{"params": tables, "weight_decay": table_decay, "lr": 2e-2}, {"params": model.taste.parameters(), "lr": 5e-3}]
    )
    order = torch.randperm(5000)
    if fault == "bazaar_refusals_first":
        order = bought[:5000].argsort(stable=True)  # the export lists refusals first
    for step in range(steps):
        rows = order[torch.arange(step * 64, step * 64 + 64) % 5000]
        loss = nn.functional.binary_cross_entropy_with_logits(model(who[rows], where[rows]), bought[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        late = nn.functional.binary_cross_entropy_with_logits(model(who[5000:], where[5000:]), bought[5000:])
    return {"loss": late.item()}


bazaar_visits.mistake(
    "bazaar_decay_on_the_tables",
    "OPT008", "WGT005",
    summary="The parameter group of the embedding tables has a weight decay of 15: the tables fade to nothing.",
    change="1e-4",
    layers=("person", "stall"),
)  # fmt: skip
bazaar_visits.mistake(
    "bazaar_refusals_first",
    "DAT005",
    summary="The rows come as the export lists them, refusals first: each batch has one answer only.",
    change="shuffle the rows",
)


@program(
    steps=150, adversarial="uneven router load is collapse: one trade really has most of the goods, all experts work"
)
def bazaar_busy_trade(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Soft routing over four experts while two thirds of the goods are of one trade."""
    torch.manual_seed(seed)
    x, y, trade = goods(40 + seed)
    often = torch.cat([(trade == 0).nonzero().squeeze(1)] * 5 + [(trade > 0).nonzero().squeeze(1)])
    model = Bazaar()
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = often[torch.randint(len(often), (64,))]
        loss = (model(x[rows]) - y[rows]).square().mean() + 0.02 * model.balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "unused": (model.load < 0.02).float().sum().item()}


@program(
    steps=180, adversarial="rows without gradient are dead: a table of 4,000 people of whom few come in each batch"
)
def bazaar_rare_customers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A large sparse table with SparseAdam beside an ordinary Adam."""
    torch.manual_seed(seed)
    who, where, bought = purchases(60 + seed, 4000, 30)
    model = Stalls(4000, 30)
    model.person = nn.Embedding.from_pretrained(model.person.weight.detach(), freeze=False, sparse=True)
    rare = torch.optim.SparseAdam(list(model.person.parameters()), lr=2e-2)
    rest = torch.optim.Adam([*model.stall.parameters(), *model.taste.parameters()], lr=1e-2)
    total = 0.0
    for _ in range(steps):
        rows = torch.randint(6000, (96,))
        loss = nn.functional.binary_cross_entropy_with_logits(model(who[rows], where[rows]), bought[rows])
        rare.zero_grad()
        rest.zero_grad()
        loss.backward()
        rare.step()
        rest.step()
        total = 0.95 * total + 0.05 * loss.item() if total else loss.item()
    return {"loss": total}


@program(
    steps=150, adversarial="a parameter without gradient is cut off: the second head is used in every fourth batch only"
)
def bazaar_two_questions(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Price in three batches of four, trade in the fourth: the other head has no gradient then, by design."""
    torch.manual_seed(seed)
    x, y, trade = goods(80 + seed)
    trunk = nn.Sequential(nn.Linear(TRAITS, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
    model = nn.ModuleDict({"trunk": trunk, "price": nn.Linear(48, 1), "trade": nn.Linear(48, 4)})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    last = {"price": 0.0, "trade": 0.0}
    for step in range(steps):
        rows = torch.randint(1500, (64,))
        h = trunk(x[rows])
        if step % 4 == 3:
            name, loss = "trade", nn.functional.cross_entropy(model["trade"](h), trade[rows])
        else:
            name, loss = "price", (model["price"](h).squeeze(1) - y[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last[name] = loss.item()
    return {"loss": last["price"], "trade": last["trade"]}
