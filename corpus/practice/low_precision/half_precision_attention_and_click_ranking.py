"""Attention written out by hand in half precision, and a ranking model for clicks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program


class HandAttention(nn.Module):
    def __init__(self, dim: int, half_scores: bool) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.half_scores = half_scores

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.wq(x), self.wk(x)
        if self.half_scores:  # "twice as fast"; the scale comes too late
            scores = (q.half() @ k.half().transpose(1, 2)).float() / q.shape[-1] ** 0.5
        else:
            scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        return scores.softmax(-1) @ self.wv(x)


class SetRegressor(nn.Module):
    """The largest of a set's values, weighted by closeness."""

    def __init__(self, half_scores: bool) -> None:
        super().__init__()
        self.lift = nn.Linear(4, 32)
        self.attn1, self.attn2 = HandAttention(32, half_scores), HandAttention(32, half_scores)
        self.out = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.lift(x))
        h = h + self.attn1(h)
        h = h + self.attn2(h)
        return self.out(h.amax(1)).squeeze(-1)


@program(steps=150, bites="error")
def largest_of_a_set(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two attention layers by hand on sets of ten; from step 70 on the sets hold one far point."""
    torch.manual_seed(seed)
    model = SetRegressor(half_scores=fault == "scores_in_half_precision")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    errors: list[float] = []
    for step in range(steps):
        x = torch.randn(32, 10, 4)
        if step >= 70:
            x[:, 0, 3] = 3000.0 if fault == "scores_in_half_precision" else 3.0
        loss = nn.functional.huber_loss(model(x), x[:, :, 0].amax(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        errors.append(min(loss.item(), 10.0) if loss.isfinite() else 10.0)
    return {"error": sum(errors[-20:]) / 20}


class Ranker(nn.Module):
    def __init__(self, items: int, factors: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(200, factors), nn.Embedding(items, factors)
        self.bias = nn.Embedding(items, 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(-1) + self.bias(item).squeeze(-1)


@program(steps=200, bites="ranking")
def click_ranking(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Bayesian personalised ranking: users like items of their own kind; `ranking` is the share of right pairs."""
    torch.manual_seed(seed)
    model = Ranker(300, 16)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3)
    if fault == "both_tables_zero":
        nn.init.zeros_(model.users.weight)
        nn.init.zeros_(model.items.weight)

    def pairs(n: int) -> tuple[Tensor, Tensor, Tensor]:
        user = torch.randint(200, (n,))
        liked = torch.randint(60, (n,)) * 5 + user % 5
        return user, liked, (liked + torch.randint(1, 5, (n,))) % 300

    for _ in range(steps):
        user, liked, other = pairs(256)
        gap = model(user, liked) - model(user, other)
        loss = nn.functional.softplus(-gap).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    user, liked, other = pairs(2000)
    with torch.no_grad():
        return {"ranking": (model(user, liked) > model(user, other)).float().mean().item()}


largest_of_a_set.mistake(
    "scores_in_half_precision",
    "NUM004", "NUM002", "NUM001", "NUM005", "DAT002",
    summary="Attention scores are float16 until they are scaled; points far too far off overflow them at step 70.",
    change="scores in float32",
    layers=("attn1", "attn2"),
    onset=70,
)  # fmt: skip
click_ranking.mistake(
    "both_tables_zero",
    "GRD004", "WGT002",
    summary="Both tables start at zero: each one's gradient is a product with the other, so neither ever moves.",
    change="small random numbers",
    layers=("users", "items"),
)  # fmt: skip
