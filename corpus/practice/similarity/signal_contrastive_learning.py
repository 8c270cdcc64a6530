"""Contrastive learning: two noisy views of a signal should have like features, others unlike ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

CLASSES = 8


def signals(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    patterns = torch.randn(CLASSES, 48, generator=torch.Generator().manual_seed(11))
    kind = torch.randint(CLASSES, (count,), generator=generator)
    return patterns[kind] + 0.3 * torch.randn(count, 48, generator=generator), kind


def augment(x: Tensor) -> Tensor:
    return x * (torch.rand_like(x) > 0.2) + 0.2 * torch.randn_like(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.projector = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.projector(self.encoder(x)), dim=1)


def nt_xent(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    both = torch.cat([a, b])
    similarity = both @ both.T / temperature
    similarity = similarity.masked_fill(torch.eye(len(both), dtype=torch.bool), float("-inf"))
    partner = torch.arange(len(both)).roll(len(a))
    return F.cross_entropy(similarity, partner)


@program(steps=150, bites="spread", adversarial="minus infinity on the diagonal by design")
def noisy_views(steps: int, seed: int, fault: str) -> dict[str, float]:
    """SimCLR's loss on short signals; the spread is one minus the mean likeness of strangers."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, _ = signals(64, generator)
        a, b = net(augment(x)), net(augment(x))
        loss = 2 - 2 * (a * b).sum(1).mean() if fault == "no_negatives" else nt_xent(a, b, 0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    x, _ = signals(256, torch.Generator().manual_seed(5))
    with torch.no_grad():
        features = net(x)
    return {"loss": loss.item(), "spread": 1 - (features @ features.T).mean().item()}


noisy_views.mistake(
    "no_negatives",
    "ACT003",
    summary="The loss only pulls views together and nothing pushes strangers apart: all features become one point.",
    change="a loss with negatives",
)
