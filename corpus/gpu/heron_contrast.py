"""Two hearings of one bird call are brought together and those of other calls kept apart; no labels."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy
from corpus.gpu.sizes import HERON


class Tower(nn.Module):
    def __init__(self, inner: int, width: int, depth: int, outer: int) -> None:
        super().__init__()
        sizes = [inner, *(width for _ in range(depth))]
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(b) for b in sizes[1:])
        self.project = nn.Linear(width, outer)

    def features(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms):
            x = functional.relu(norm(layer(x)))
        return x

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(self.project(self.features(x)), dim=1)


class Marsh:
    """Calls mix a few motifs; a hearing loses some bands, is louder or fainter, and has noise."""

    def __init__(self, bands: int, motifs: int, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.motifs = torch.randn(motifs, bands, generator=self.dice, device=device)

    def random(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.dice, device=self.motifs.device)

    def calls(self, count: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(len(self.motifs), (count,), generator=self.dice, device=self.motifs.device)
        other = torch.randint(len(self.motifs), (count,), generator=self.dice, device=self.motifs.device)
        return self.motifs[kind] + 0.5 * self.random(count, 1) * self.motifs[other], kind

    def hear(self, calls: Tensor) -> Tensor:
        kept = (self.random(*calls.shape) > 0.3).float()
        noise = torch.randn(calls.shape, generator=self.dice, device=calls.device)
        return (0.7 + 0.6 * self.random(len(calls), 1)) * calls * kept + 0.4 * noise


def contrast(first: Tensor, second: Tensor, warmth: Tensor) -> Tensor:
    both = torch.cat([first, second])
    likeness = (both @ both.T).float() * warmth.exp().clamp(max=50.0)
    likeness = likeness.masked_fill(torch.eye(len(both), dtype=torch.bool, device=both.device), -1e4)
    partner = torch.arange(len(both), device=both.device).roll(len(first))
    return functional.cross_entropy(likeness, partner)


@healthy(steps=HERON.steps, architecture="mlp")
def heron_contrast(steps: int, seed: int) -> dict[str, float]:
    """An encoder learns without labels which two hearings are of one call, with a learned temperature."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    marsh = Marsh(HERON.length, HERON.kinds, seed, device)
    tower = Tower(HERON.length, HERON.width, HERON.depth, max(8, HERON.width // 4)).to(device)
    warmth = nn.Parameter(torch.tensor(math.log(10.0), device=device))
    optimizer = torch.optim.AdamW(
        [{"params": tower.parameters()}, {"params": [warmth], "weight_decay": 0.0}], lr=HERON.rate, weight_decay=0.02
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, max(1, HERON.steps // 3))

    def agree(count: int) -> Tensor:
        calls, _ = marsh.calls(count)
        first, second = marsh.hear(calls), marsh.hear(calls)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            views = tower(torch.cat([first, second]))
        first, second = views.float().chunk(2)
        return contrast(first, second, warmth)

    tower.train()
    for _ in range(steps):
        loss = agree(HERON.batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    tower.eval()
    with torch.no_grad():
        return {"loss": agree(HERON.batch).item()}
