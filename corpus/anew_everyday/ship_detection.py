"""Find ships on small pictures: objectness per cell, boxes by their overlap, a prior for rare objects."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

GRID, SIZE = 6, 24


def harbours(seed: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """A picture with one ship: its cell of the grid, and its box (left, top, right, bottom) in cells."""
    g = torch.Generator().manual_seed(seed)
    centre = 4 + (SIZE - 8) * torch.rand(count, 2, generator=g)
    half = 1.5 + 2 * torch.rand(count, 2, generator=g)
    y, x = torch.meshgrid(torch.arange(float(SIZE)) + 0.5, torch.arange(float(SIZE)) + 0.5, indexing="ij")
    inside = ((x - centre[:, 0, None, None]).abs() < half[:, 0, None, None]) & (
        (y - centre[:, 1, None, None]).abs() < half[:, 1, None, None]
    )
    pictures = inside.float() + 0.25 * torch.randn(count, SIZE, SIZE, generator=g)
    cell = (centre / 4).long()
    return pictures[:, None], cell[:, 1] * GRID + cell[:, 0], torch.cat([centre - half, centre + half], 1) / 4


class Detector(nn.Module):
    """Convolutions down to a grid of cells; each says whether a ship is there and where its borders are."""

    def __init__(self, prior_everywhere: bool, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.object, self.sides = nn.Conv2d(2 * width, 1, 1), nn.Conv2d(2 * width, 4, 1)
        prior = -math.log((1 - 0.01) / 0.01)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and (prior_everywhere or module is self.object):
                nn.init.constant_(module.bias, prior)  # at fault: ships_prior_in_every_layer

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(pictures)
        return self.object(h).flatten(1), self.sides(h).flatten(2).transpose(1, 2)


def boxes_of(sides: Tensor, cell: Tensor, softly: bool) -> Tensor:
    """Borders from the distances to the middle of the cell, which must not be negative."""
    middle = torch.stack([cell % GRID, cell // GRID], -1) + 0.5
    reach = F.softplus(sides) if softly else F.relu(sides)
    return torch.cat([middle - reach[:, :2], middle + reach[:, 2:]], -1)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    both = (high - low).clamp(min=0).prod(-1)
    area = (a[:, 2:] - a[:, :2]).prod(-1) + (b[:, 2:] - b[:, :2]).prod(-1)
    return both / (area - both)


@program(steps=300, bites="overlap")
def ship_detector(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A detector of one stage with the logarithm of the overlap as loss for boxes; Adam."""
    torch.manual_seed(seed)
    pictures, cells, boxes = harbours(seed, 1500)
    model = Detector(mistake == "ships_prior_in_every_layer")
    softly = mistake != "ships_logarithm_of_no_overlap"
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def locate(sides: Tensor, cell: Tensor) -> Tensor:
        return boxes_of(sides[torch.arange(len(cell)), cell], cell, softly)

    for _ in range(steps):
        rows = torch.randint(len(pictures), (32,))
        objectness, sides = model(pictures[rows])
        there = F.one_hot(cells[rows], GRID * GRID).float()
        found = F.binary_cross_entropy_with_logits(objectness, there, reduction="sum") / len(rows)
        shared = overlap(locate(sides, cells[rows]), boxes[rows])
        loss = found - torch.log(shared).mean()  # at fault: ships_logarithm_of_no_overlap
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pictures, cells, boxes = harbours(seed + 8, 300)
    with torch.no_grad():
        objectness, sides = model(pictures)
        share = overlap(locate(sides, objectness.argmax(1)), boxes).nan_to_num(0).mean().item()
    return {"overlap": share}


ship_detector.mistake(
    "ships_prior_in_every_layer",
    "ACT001",
    summary="The bias for rare objects goes into every convolution, and the ReLUs behind them never wake.",
    change="only the layer for objects has it",
    layers=("body",),
)
ship_detector.mistake(
    "ships_logarithm_of_no_overlap",
    "NUM002",
    summary="Borders cut off at zero give boxes without area, and the logarithm of their overlap is infinite.",
    change="softplus",
)
