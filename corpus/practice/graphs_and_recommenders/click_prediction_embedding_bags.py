"""Will this shopper click? Bags of items seen before, an item offered, and a small network on top."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

ITEMS, TASTES, SEEN = 60, 5, 6


class Shop:
    def __init__(self, seed: int, rare: float = 0.0) -> None:
        self.g = torch.Generator().manual_seed(seed)
        self.taste = torch.randint(TASTES, (ITEMS,), generator=self.g)
        self.rare = rare

    def visits(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """(items seen before, item offered, clicked)"""
        shopper = torch.randint(TASTES, (n,), generator=self.g)
        liked = [(self.taste == taste).nonzero().squeeze(1) for taste in range(TASTES)]
        seen = torch.stack(
            [liked[s][torch.randint(len(liked[s]), (SEEN,), generator=self.g)] for s in shopper.tolist()]
        )
        offered = torch.randint(ITEMS, (n,), generator=self.g)
        near = torch.rand(n, generator=self.g) < 0.5
        same = torch.stack([liked[s][torch.randint(len(liked[s]), (), generator=self.g)] for s in shopper.tolist()])
        offered = torch.where(near, same, offered)
        clicked = self.taste[offered] == shopper
        if self.rare:
            clicked &= torch.rand(n, generator=self.g) < self.rare
        return seen, offered, clicked.float()


class Clicks(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.history = nn.EmbeddingBag(ITEMS, 16, mode="mean", sparse=sparse)
        self.item = nn.Embedding(ITEMS, 16, sparse=sparse)
        self.mlp = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, seen: Tensor, offered: Tensor) -> Tensor:
        a, b = self.history(seen), self.item(offered)
        return self.mlp(torch.cat([a, b, a * b], 1)).squeeze(1)


def log_loss(model: nn.Module, shop: Shop, probabilities: bool = False) -> float:
    seen, offered, clicked = shop.visits(500)
    with torch.no_grad():
        score = model(seen, offered)
    if probabilities:
        score = torch.logit(score, eps=1e-6)
    return nn.functional.binary_cross_entropy_with_logits(score, clicked).nan_to_num(1e6).clamp(max=1e6).item()


@program(steps=140, bites="log_loss")
def basket_clicks(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adam on the log-loss of clicks."""
    torch.manual_seed(seed)
    shop = Shop(seed)
    model = Clicks()
    if fault == "sigmoid_and_with_logits":
        model.mlp.append(nn.Sigmoid())
    decay = 0.3 if fault == "penalty_of_the_linear_model" else 0.0
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=decay)
    if fault == "momentum_of_0999":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.999)
    pool = [shop.visits(128) for _ in range(30)]
    if fault == "clicks_first":
        seen, offered, clicked = (torch.cat(part) for part in zip(*pool, strict=True))
        order = clicked.argsort(descending=True, stable=True)
        pool = [(seen[o], offered[o], clicked[o]) for o in order.split(128)]
    for step in range(steps):
        seen, offered, clicked = pool[step % 30]
        loss = criterion(model(seen, offered), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"log_loss": log_loss(model, shop, probabilities=fault == "sigmoid_and_with_logits")}


basket_clicks.mistake(
    "sigmoid_and_with_logits",
    "LSS001",
    summary="The network ends in a sigmoid, and the loss applies another one.",
    change="no sigmoid in the network",
)
basket_clicks.mistake(
    "penalty_of_the_linear_model",
    "OPT008", "WGT005",
    summary="A penalty of 0.3 on all squared weights, right for the linear model before, wins over the clicks.",
    change="no penalty",
)  # fmt: skip
basket_clicks.mistake(
    "momentum_of_0999",
    "OPT008", "OPT004", "OPT007", "UPD001",
    summary="SGD with a momentum of 0.999: every step is the sum of a thousand.",
    change="Adam, or a momentum of 0.9",
)  # fmt: skip
basket_clicks.mistake(
    "clicks_first",
    "DAT005",
    summary="The visits are sorted: first all that ended in a click, then all that did not.",
    change="shuffle",
)


@program(steps=140, bites="log_loss", adversarial="a parameter that this optimizer does not hold is forgotten")
def basket_sparse_and_dense(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Sparse tables under SparseAdam and the network under AdamW, both stepped together."""
    torch.manual_seed(seed)
    shop = Shop(seed)
    model = Clicks(sparse=True)
    of_tables = torch.optim.SparseAdam([*model.history.parameters(), *model.item.parameters()], lr=1e-2)
    of_network = torch.optim.AdamW(model.mlp.parameters(), lr=5e-3)
    for _ in range(steps):
        seen, offered, clicked = shop.visits(96)
        loss = nn.functional.binary_cross_entropy_with_logits(model(seen, offered), clicked)
        of_tables.zero_grad()
        of_network.zero_grad()
        loss.backward()
        of_tables.step()
        of_network.step()
    return {"log_loss": log_loss(model, shop)}


@program(steps=140, bites="log_loss", adversarial="a loss that stops far above zero is a plateau")
def basket_chance_clicks(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Half of the clicks are chance: the loss can fall by a third at most."""
    torch.manual_seed(seed)
    shop = Shop(seed, rare=0.5)
    model = Clicks()
    nn.init.constant_(model.mlp[2].bias, -0.8)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        seen, offered, clicked = shop.visits(128)
        loss = nn.functional.binary_cross_entropy_with_logits(model(seen, offered), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"log_loss": log_loss(model, shop)}
