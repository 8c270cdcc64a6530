"""What will a household take from the larder? Embeddings of people and goods, a small network on top."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

PEOPLE, GOODS, EPOCH = 100, 80, 24


def purchases(count: int, seed: int, taste_seed: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Tastes are fixed; popular goods come up far more often."""
    g = torch.Generator().manual_seed(taste_seed)
    taste, kind = torch.randn(PEOPLE, 4, generator=g), torch.randn(GOODS, 4, generator=g)
    popularity = 1 / torch.arange(3, GOODS + 3)
    g = torch.Generator().manual_seed(seed)
    who = torch.randint(PEOPLE, (count,), generator=g)
    what = torch.multinomial(popularity, count, replacement=True, generator=g)
    chance = torch.sigmoid(2.0 * (taste[who] * kind[what]).sum(1))
    return who, what, (torch.rand(count, generator=g) < chance).float()


class Recommender(nn.Module):
    def __init__(self, goods: int = GOODS, dim: int = 16) -> None:
        super().__init__()
        self.people = nn.Embedding(PEOPLE, dim)
        self.goods = nn.Embedding(goods, dim)
        nn.init.normal_(self.people.weight, std=0.3)
        nn.init.normal_(self.goods.weight, std=0.3)
        self.mlp = nn.Sequential(nn.Linear(3 * dim, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, who: Tensor, what: Tensor) -> Tensor:
        a, b = self.people(who), self.goods(what)
        return self.mlp(torch.cat([a, b, a * b], dim=1)).squeeze(1)


@torch.no_grad()
def guessed(model: nn.Module, seed: int) -> float:
    who, what, taken = purchases(3000, seed + 60_000)
    return ((model(who, what) > 0) == (taken > 0)).float().mean().item()


@program(steps=192, bites="guessed")
def larder(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adam with one group for tables and one for the network, the rate falls after every epoch."""
    torch.manual_seed(seed)
    who, what, taken = purchases(EPOCH * 256, seed)
    model = Recommender()
    mlp_rate = float(int(0.006)) if fault == "larder_rate_read_as_integer" else 0.006

    def optimizer_of(scale: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            [
                {"params": [*model.people.parameters(), *model.goods.parameters()], "lr": 0.02 * scale},
                {"params": model.mlp.parameters(), "lr": mlp_rate * scale},
            ]
        )

    if fault == "larder_mask_of_integers":
        counts = torch.bincount(what, minlength=GOODS)
        mask = (counts // counts.max()).float()[:, None]  # meant: counts / counts.max()
        model.goods.weight.register_hook(lambda grad: grad * mask)
    optimizer, scale = optimizer_of(1.0), 1.0
    late, done = 0.7, 0
    while done < steps:
        for index in torch.randperm(len(who)).split(256):
            if done == steps:
                break
            if fault == "larder_optimizer_after_every_delivery" and done >= 70:
                optimizer = optimizer_of(scale)  # the table may have grown, so start afresh; every time
            loss = fn.binary_cross_entropy_with_logits(model(who[index], what[index]), taken[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            late += 0.05 * (loss.item() - late)
            done += 1
            if done % EPOCH == 0 or fault == "larder_rate_falls_every_batch":
                scale *= 0.75
                for group in optimizer.param_groups:
                    group["lr"] *= 0.75
    return {"late_loss": late, "guessed": guessed(model, seed)}


larder.mistake(
    "larder_rate_read_as_integer",
    "UPD003", "UPD002", "OPT007",
    summary="The rate of the network is read as an integer: 0.006 becomes zero, only the tables learn.",
    change="float(config)",
    layers=("mlp",),
)  # fmt: skip
larder.mistake(
    "larder_mask_of_integers",
    "GRD004", "UPD003",
    summary="A hook weights the goods' gradients by popularity with an integer division: all but one get zero.",
    change="counts / counts.max()",
    layers=("goods",),
)  # fmt: skip
larder.mistake(
    "larder_rate_falls_every_batch",
    "OPT007", "UPD002",
    summary="The decay of 0.75 meant for every epoch happens after every batch: the rate is gone after thirty.",
    change="decay once per epoch",
)  # fmt: skip
larder.mistake(
    "larder_optimizer_after_every_delivery",
    "OPT008",
    summary="From step 70 a callback builds the optimizer again before every batch: Adam has no memory any more.",
    change="build it again only when the table has grown",
    onset=70,
    bites="late_loss",
)


@program(steps=160, bites="guessed", adversarial="a parameter that rests for ten steps was forgotten")
def larder_takes_turns(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A factorisation by turns: ten steps for people, ten for goods, an optimizer for each."""
    torch.manual_seed(seed)
    who, what, taken = purchases(EPOCH * 256, seed)
    people, goods = nn.Embedding(PEOPLE, 8), nn.Embedding(GOODS, 8)
    nn.init.normal_(people.weight, std=0.5)
    nn.init.normal_(goods.weight, std=0.5)
    _model = nn.ModuleDict({"people": people, "goods": goods})
    turns = [torch.optim.Adam(people.parameters(), lr=0.05), torch.optim.Adam(goods.parameters(), lr=0.05)]
    loss = torch.zeros(())
    for step in range(steps):
        pick = torch.randint(len(who), (256,))
        loss = fn.binary_cross_entropy_with_logits((people(who[pick]) * goods(what[pick])).sum(1), taken[pick])
        _model.zero_grad()
        loss.backward()
        turns[step // 10 % 2].step()
    test_who, test_what, test_taken = purchases(3000, seed + 60_000)
    with torch.no_grad():
        hit = ((people(test_who) * goods(test_what)).sum(1) > 0) == (test_taken > 0)
    return {"loss": loss.item(), "guessed": hit.float().mean().item()}


@program(steps=200, bites="guessed", adversarial="a table where most rows get no gradient is broken")
def larder_small_orders(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Batches of sixteen: in most steps nine rows in ten of a table are not asked for. Adagrad."""
    torch.manual_seed(seed)
    who, what, taken = purchases(4000, seed)
    model = Recommender()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for _ in range(steps):
        for _ in range(2):  # two small orders make one step
            pick = torch.randint(len(who), (16,))
            loss = fn.binary_cross_entropy_with_logits(model(who[pick], what[pick]), taken[pick]) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": loss.item() * 2, "guessed": guessed(model, seed)}


@program(steps=200, bites="ordered")
def larder_in_pairs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Bayesian pairwise ranking: what was taken should score above what was left."""
    torch.manual_seed(seed)
    who, what, taken = purchases(6000, seed)
    model = Recommender()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.012, weight_decay=1e-3)
    yes, no = taken.nonzero()[:, 0], (taken == 0).nonzero()[:, 0]
    loss = torch.zeros(())
    for _ in range(steps):
        a, b = yes[torch.randint(len(yes), (96,))], no[torch.randint(len(no), (96,))]
        loss = -fn.logsigmoid(model(who[a], what[a]) - model(who[a], what[b])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test_who, test_what, test_taken = purchases(3000, seed + 60_000)
    with torch.no_grad():
        scores = model(test_who, test_what)
    ordered = (scores[test_taken > 0].mean() - scores[test_taken == 0].mean()) / scores.std()
    return {"loss": loss.item(), "ordered": ordered.item()}
