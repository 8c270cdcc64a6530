"""A policy fills a knapsack; items that no longer fit are masked."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from undertow.demos.case import Fault, sick

ITEMS = 8


def pick(logits: Tensor) -> Tensor:
    """Sample by the Gumbel trick."""
    gumbel = -torch.log(-torch.log(torch.rand_like(logits) + 1e-9) + 1e-9)
    return (logits + gumbel).argmax(1)


@sick(
    "NUM002", "NUM001", steps=1800, onset=300, bites="value", architecture="perceptron",
    change="masked logits are −1e9, so that 0 · log 0 does not occur",
)  # fmt: skip
def entropy_of_forbidden_items(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """From update 300 the knapsack has a limit; masked items have probability zero, and 0 · log 0 is not."""
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(3 * ITEMS + 1, 64), nn.ReLU(), nn.Linear(64, ITEMS))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    floor = -float("inf") if fault else -1e9  # at fault: entropy_of_forbidden_items
    values: list[float] = []
    for update in range(steps):
        limit = 1.0 if update >= 300 else 100.0  # first learn what is valuable, then what fits
        value, weight = torch.rand(64, ITEMS), 0.1 + 0.5 * torch.rand(64, ITEMS)
        left, taken = torch.full((64,), limit), torch.zeros(64, ITEMS)
        log_probs, entropies, gained = [], [], torch.zeros(64)
        for _ in range(3):
            seen = torch.cat([value, weight, taken, left.clamp(max=2)[:, None]], 1)
            fits = (weight <= left[:, None]) & (
                (taken == 0) if limit < 100 else torch.ones_like(taken, dtype=torch.bool)
            )
            logits = policy(seen).masked_fill(~fits, floor)
            logits = torch.where(fits.any(1, keepdim=True), logits, torch.zeros_like(logits))
            log_p = logits.log_softmax(1)
            action = pick(logits)
            allowed = fits.gather(1, action[:, None]).squeeze(1) & (taken.gather(1, action[:, None]).squeeze(1) == 0)
            gained = gained + allowed * value.gather(1, action[:, None]).squeeze(1)
            left = left - allowed * weight.gather(1, action[:, None]).squeeze(1)
            taken = taken.scatter(1, action[:, None], 1.0)
            log_probs.append(log_p.gather(1, action[:, None]).squeeze(1))
            entropies.append(-(log_p.exp() * log_p).sum(1))  # at fault: entropy_of_forbidden_items
        advantage = (gained - gained.mean()) / (gained.std() + 1e-6)
        loss = -(advantage * torch.stack(log_probs).sum(0)).mean() - 0.02 * torch.stack(entropies).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(gained.mean().item())
    return {"value": sum(values[-50:]) / len(values[-50:])}
