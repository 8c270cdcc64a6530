"""Predict clicks from ids: wide and deep with embeddings, parameter groups from a table of settings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

USERS, ITEMS = 120, 80


def clicks(seed: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Users, items, five numbers of context, and whether there was a click."""
    fixed = torch.Generator().manual_seed(31)
    taste, style = torch.randn(USERS, 3, generator=fixed), torch.randn(ITEMS, 3, generator=fixed)
    g = torch.Generator().manual_seed(seed)
    user = torch.randint(USERS, (count,), generator=g)
    item = torch.randint(ITEMS, (count,), generator=g)
    context = torch.randn(count, 5, generator=g)
    score = 1.5 * (taste[user] * style[item]).sum(1) + context[:, 0] - 0.5
    return user, item, context, (torch.rand(count, generator=g) < torch.sigmoid(2 * score)).float()


class WideAndDeep(nn.Module):
    def __init__(self, dimension: int = 12, squash: bool = False) -> None:
        super().__init__()
        self.squash = squash
        self.user, self.item = nn.Embedding(USERS, dimension), nn.Embedding(ITEMS, dimension)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)
        self.wide = nn.Linear(5, 1)
        self.deep = nn.Sequential(
            nn.Linear(3 * dimension + 5, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1)
        )

    def forward(self, user: Tensor, item: Tensor, context: Tensor) -> Tensor:
        u, i = self.user(user), self.item(item)
        score = self.wide(context) + self.deep(torch.cat([u, i, u * i, context], 1))
        if self.squash:
            score = torch.sigmoid(score)  # at fault: clicks_squashed_twice
        return score.squeeze(1)


def groups_of(model: WideAndDeep, slow_tables: bool) -> list[dict[str, Any]]:
    tables = [*model.user.parameters(), *model.item.parameters()]
    rest = [*model.wide.parameters(), *model.deep.parameters()]
    return [
        {"params": tables, "lr": 1e-6 if slow_tables else 2e-2},  # at fault: clicks_tables_hardly_move
        {"params": rest, "lr": 3e-3},
    ]


@program(steps=1200, bites="accuracy")
def click_wide_and_deep(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Wide and deep model of clicks; tables and layers have rates of their own."""
    torch.manual_seed(seed)
    user, item, context, clicked = clicks(seed, 30000)
    model = WideAndDeep(squash=mistake == "clicks_squashed_twice")
    eps = 1.0 if mistake == "clicks_eps_for_other_loss" else 1e-8
    groups = groups_of(model, mistake == "clicks_tables_hardly_move")
    optimizer = torch.optim.Adam(groups, eps=eps)  # at fault: clicks_eps_for_other_loss
    for _ in range(steps):
        rows = torch.randint(len(user), (256,))
        loss = F.binary_cross_entropy_with_logits(model(user[rows], item[rows], context[rows]), clicked[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    user, item, context, clicked = clicks(seed + 11, 3000)
    with torch.no_grad():
        scores = model(user, item, context)
        chance = scores if mistake == "clicks_squashed_twice" else torch.sigmoid(scores)
    return {
        "accuracy": ((chance > 0.5).float() == clicked).float().mean().item(),
        "loss": F.binary_cross_entropy(chance, clicked).item(),
    }


click_wide_and_deep.mistake(
    "clicks_squashed_twice",
    "LSS001",
    bites="loss",
    summary="The model ends in a sigmoid and the loss applies another one.",
    change="the model gives logits",
)
click_wide_and_deep.mistake(
    "clicks_tables_hardly_move",
    "UPD002",
    "OPT007",
    summary="The rate of the embedding tables is 1e-6, which was meant to be their decay.",
    change="lr=2e-2 for the tables",
    layers=("user", "item"),
)
click_wide_and_deep.mistake(
    "clicks_eps_for_other_loss",
    "OPT008",
    summary="Adam's eps is 1, as another program with another loss had it.",
    change="eps=1e-8",
)
