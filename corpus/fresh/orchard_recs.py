"""Which fruit for whom, and which orchard belongs to whom: recommenders with embeddings, and networks over a graph."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

BUYERS, FRUITS, ORCHARDS = 300, 500, 240


def orchard_baskets(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Who looked at what, and did they buy? Tastes of five dimensions decide."""
    taste = torch.Generator().manual_seed(88)
    p, q = torch.randn(BUYERS, 5, generator=taste), torch.randn(FRUITS, 5, generator=taste)
    g = torch.Generator().manual_seed(seed)
    buyer, fruit = torch.randint(BUYERS, (count,), generator=g), torch.randint(FRUITS, (count,), generator=g)
    liking = (p[buyer] * q[fruit]).sum(1)
    return buyer, fruit, (liking + 0.3 * torch.randn(count, generator=g) > 0).float()


class TwoTower(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.buyers = nn.Embedding(BUYERS, dim)
        self.fruits = nn.Embedding(FRUITS, dim)
        nn.init.normal_(self.buyers.weight, std=0.2)
        nn.init.normal_(self.fruits.weight, std=0.2)
        self.mix = nn.Sequential(nn.Linear(2 * dim, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, buyer: Tensor, fruit: Tensor) -> Tensor:
        p, q = self.buyers(buyer), self.fruits(fruit)
        return (p * q).sum(1) + self.mix(torch.cat([p, q], dim=1)).squeeze(1)


@torch.no_grad()
def orchard_auc(scores: Tensor, bought: Tensor) -> float:
    good, bad = scores[bought > 0.5], scores[bought < 0.5]
    return (0.5 + 0.5 * torch.sign(good[:, None] - bad[None, :])).mean().item()


@program(steps=300, bites="auc")
def orchard(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The product of two embeddings and a small network over both; epochs are shuffled, Adam and a little decay."""
    torch.manual_seed(seed)
    buyer, fruit, bought = orchard_baskets(24000, 3)
    if fault == "orchard_short_catalogue":
        fruit = fruit.clamp(max=23)  # the catalogue file had only its first page
    if fault == "orchard_reordered_log":
        bought = bought[fruit.argsort()]  # joined with a table in another order
    model = TwoTower()
    decay = 0.3 if fault == "orchard_pruned_to_nothing" else 1e-5
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=decay)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < 256:
            order = torch.randperm(len(buyer))
            if fault == "orchard_buyers_last":
                order = order[bought[order].argsort(stable=True)]
        rows, order = order[:256], order[256:]
        score = model(buyer[rows], fruit[rows])
        loss = fn.binary_cross_entropy_with_logits(score, bought[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    new_buyer, new_fruit, new_bought = orchard_baskets(3000, 4003)
    if fault == "orchard_short_catalogue":
        new_fruit = new_fruit.clamp(max=23)
    with torch.no_grad():
        auc = orchard_auc(model(new_buyer, new_fruit), new_bought)
    return {"loss": loss.item(), "auc": auc}


orchard.mistake(
    "orchard_short_catalogue",
    "DAT006",
    summary="Ids beyond the first page of the catalogue are clamped to its last one: most fruits are never seen.",
    change="use the ids as they are",
    layers=("fruits",),
)
orchard.mistake(
    "orchard_reordered_log",
    "DAT004", "OPT005",
    summary="The column of purchases was joined in another order: it belongs to other rows.",
    change="sort all columns or none",
)  # fmt: skip
orchard.mistake(
    "orchard_pruned_to_nothing",
    "OPT008", "WGT005",
    summary="Adam with an L2 decay of 0.3: the penalty outweighs every gradient and the embeddings go to zero.",
    change="weight_decay=1e-5",
)  # fmt: skip
orchard.mistake(
    "orchard_buyers_last",
    "DAT005",
    summary="Each epoch is sorted by outcome: first everyone who did not buy, then everyone who did.",
    change="shuffle",
)


@healthy(steps=300, adversarial="an embedding whose rows mostly get no gradient is a fault")
def orchard_sparse_pairs(steps: int, seed: int) -> dict[str, float]:
    """Bayesian personalised ranking with sparse gradients and SparseAdam: each step touches a few rows."""
    torch.manual_seed(seed)
    buyer, fruit, bought = orchard_baskets(40000, 3)
    liked, other = (bought > 0.5).nonzero().flatten(), (bought < 0.5).nonzero().flatten()
    by_buyer = [other[buyer[other] == b] for b in range(BUYERS)]
    p, q = nn.Embedding(BUYERS, 8, sparse=True), nn.Embedding(FRUITS, 8, sparse=True)
    nn.init.normal_(p.weight, std=0.3)
    nn.init.normal_(q.weight, std=0.3)
    optimizer = torch.optim.SparseAdam([*p.parameters(), *q.parameters()], lr=0.03)
    first = 0.0
    for _ in range(steps):
        rows = liked[torch.randint(len(liked), (128,))]
        who = buyer[rows]
        partner = torch.stack([by_buyer[b][torch.randint(len(by_buyer[b]), ())] for b in who.tolist()])
        margin = (p(who) * (q(fruit[rows]) - q(fruit[partner]))).sum(1)
        loss = -fn.logsigmoid(margin).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    new_buyer, new_fruit, new_bought = orchard_baskets(3000, 4003)
    with torch.no_grad():
        return {
            "first": first,
            "loss": loss.item(),
            "auc": orchard_auc((p(new_buyer) * q(new_fruit)).sum(1), new_bought),
        }


def orchard_map(seed: int, noise: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """Orchards of four owners: neighbours mostly share the owner; what grows there tells a little."""
    g = torch.Generator().manual_seed(seed)
    owner = torch.arange(ORCHARDS) % 4
    same = owner[:, None] == owner[None, :]
    edge = torch.rand(ORCHARDS, ORCHARDS, generator=g).triu(1) > torch.where(same, 0.9, 0.985).triu(1)
    edge = (edge.triu(1) | edge.triu(1).T).float() + torch.eye(ORCHARDS)
    x = torch.randn(4, 16, generator=g)[owner] + noise * torch.randn(ORCHARDS, 16, generator=g)
    return x, edge, owner


class GraphLayer(nn.Module):
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(into, out)

    def forward(self, h: Tensor, a: Tensor) -> Tensor:
        return a @ self.lin(h)


class GCN(nn.Module):
    def __init__(self, depth: int = 2, width: int = 32) -> None:
        super().__init__()
        sizes = [16] + [width] * (depth - 1) + [4]
        self.layers = nn.ModuleList(GraphLayer(i, o) for i, o in pairwise(sizes))

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x, a))
        return self.layers[-1](x, a)


@program(steps=200, bites="accuracy", adversarial="full batches of few labels overfit")
def orchard_owners(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A graph network over the whole map; a third of the owners is known."""
    torch.manual_seed(seed)
    x, edge, owner = orchard_map(21)
    a = edge / edge.sum(1, keepdim=True)
    if fault == "orchard_raw_readings":
        x = 60 * x + 150
    model = GCN(depth=24 if fault == "orchard_all_the_same_from_afar" else 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=5e-4)
    known = torch.rand(ORCHARDS, generator=torch.Generator().manual_seed(5)) < 0.33
    for _ in range(steps):
        loss = fn.cross_entropy(model(x, a)[known], owner[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(x, a).argmax(1) == owner)[~known].float().mean().item()
    return {"loss": loss.item(), "accuracy": accuracy}


orchard_owners.mistake(
    "orchard_all_the_same_from_afar",
    "ACT003", "GRD001",
    summary="Twenty-four rounds of averaging over neighbours: in the end all orchards look the same.",
    change="two layers",
    layers=("layers",),
)  # fmt: skip
orchard_owners.mistake(
    "orchard_raw_readings",
    "DAT001",
    summary="The readings are raw, in grams around 150, while the network was made for standardised ones.",
    change="standardise the readings",
)  # fmt: skip


@healthy(steps=200, adversarial="a training loss of almost zero on few samples is overfitting")
def orchard_with_hidden_roads(steps: int, seed: int) -> dict[str, float]:
    """A fifth of all roads is hidden in each step (DropEdge), readings are dropped, labels smoothed; AdamW."""
    torch.manual_seed(seed)
    x, edge, owner = orchard_map(21, noise=1.5)
    model = GCN(depth=3, width=48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, weight_decay=0.02)
    known = torch.rand(ORCHARDS, generator=torch.Generator().manual_seed(5)) < 0.4
    first = 0.0
    for _ in range(steps):
        kept = edge * (torch.rand_like(edge) > 0.2) + torch.eye(ORCHARDS)
        logits = model(fn.dropout(x, 0.3), kept / kept.sum(1, keepdim=True))
        loss = fn.cross_entropy(logits[known], owner[known], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    with torch.no_grad():
        accuracy = (model(x, edge / edge.sum(1, keepdim=True)).argmax(1) == owner)[~known].float().mean().item()
    return {"first": first, "loss": loss.item(), "accuracy": accuracy}
