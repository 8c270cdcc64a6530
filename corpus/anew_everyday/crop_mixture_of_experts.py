"""Yields of crops by a mixture of experts: one expert per row, with a term that keeps them all at work."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

EXPERTS, FEATURES = 4, 12


def fields(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Every one of four soils has a rule of its own for the yield."""
    rules = torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(2))
    g = torch.Generator().manual_seed(seed)
    soil = torch.randint(4, (count,), generator=g)
    x = torch.randn(count, FEATURES, generator=g)
    x[:, :4] += 3 * F.one_hot(soil, 4)
    return x, (x * rules[soil]).sum(1) / 3 + 0.1 * torch.randn(count, generator=g)


class Mixture(nn.Module):
    """The best expert answers for each row, weighted by how sure the router is."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.router = nn.Linear(FEATURES, EXPERTS)
        with torch.no_grad():
            self.router.bias[0] = start
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(FEATURES, 24), nn.ReLU(), nn.Linear(24, 1)) for _ in range(EXPERTS)
        )
        self.share = torch.zeros(EXPERTS)
        self.balance = torch.tensor(0.0)

    def forward(self, x: Tensor) -> Tensor:
        chance = self.router(x).softmax(-1)
        best, chosen = chance.max(-1)
        self.share = F.one_hot(chosen, EXPERTS).float().mean(0)
        self.balance = EXPERTS * (self.share * chance.mean(0)).sum()
        output = torch.zeros(len(x))
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                output = output.index_put((rows,), best[rows] * expert(x[rows]).squeeze(1))
        return output


@program(steps=600, bites="busiest")
def crop_mixture(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Mixture of four experts with a balance term; AdamW and a cosine."""
    torch.manual_seed(seed)
    x, y = fields(seed, 4000)
    alone = mistake == "crops_one_expert_does_all"
    model = Mixture(start=4.0 if alone else 0.0)  # at fault: crops_one_expert_does_all
    weight = 0.0 if alone else 0.05
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        loss = F.mse_loss(model(x[rows]), y[rows]) + weight * model.balance  # at fault: crops_one_expert_does_all
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    x, y = fields(seed + 6, 1000)
    with torch.no_grad():
        error = F.mse_loss(model(x), y).item() / y.var().item()
    return {"error": error, "busiest": model.share.max().item()}


crop_mixture.mistake(
    "crops_one_expert_does_all",
    "ACT005",
    summary="The router starts with a strong bias to the first expert and nothing keeps the others at work.",
    change="no bias, and a balance term",
    layers=("router", "experts"),
    silent=True,
)
