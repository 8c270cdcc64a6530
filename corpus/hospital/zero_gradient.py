"""GRD004: a gradient arrives, and every element of it is exactly zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, zero_a: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.zeros(rank, base.in_features))  # at fault
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))  # at fault
        if not zero_a:
            nn.init.normal_(self.lora_a, std=base.in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * (x @ self.lora_a.T @ self.lora_b.T)


@sick(
    "GRD004", steps=150, layers=("0.lora_a", "0.lora_b", "2.lora_a", "2.lora_b"), change="A random, only B zero",
    architecture="low-rank adapters", catalogue=(13,),
)  # fmt: skip
def lora_both_zero(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Low-rank adapters with A = B = 0: each one's gradient is a product with the other, zero for ever."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(
        Adapted(nn.Linear(64, 48), 8, zero_a=fault.on), nn.Tanh(), Adapted(nn.Linear(48, 10), 8, zero_a=fault.on)
    )
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
