"""Point clouds of pebbles: a PointNet with a learned rotation tells balls, boxes and rings apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

POINTS = 32


def scan(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    kind = torch.randint(3, (n,), generator=generator)
    raw = torch.randn(n, POINTS, 3, generator=generator)
    ball = raw / raw.norm(dim=-1, keepdim=True)
    box = raw / raw.abs().amax(-1, keepdim=True) * 0.7
    flat = raw.clone()
    flat[..., 2] *= 0.1
    ring = flat / flat[..., :2].norm(dim=-1, keepdim=True)
    cloud = torch.stack([ball, box, ring])[kind, torch.arange(n)]
    angle = torch.rand(n, generator=generator) * 6.28
    turn = torch.eye(3).repeat(n, 1, 1)
    turn[:, 0, 0], turn[:, 1, 1], turn[:, 0, 1], turn[:, 1, 0] = angle.cos(), angle.cos(), angle.sin(), -angle.sin()
    return cloud @ turn + 0.03 * torch.randn(n, POINTS, 3, generator=generator), kind


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn_points = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.turn_matrix = nn.Linear(24, 9)
        self.points = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 48), nn.ReLU())
        self.bottleneck = nn.Linear(96, 32)
        self.norm = nn.BatchNorm1d(32)
        self.classify = nn.Linear(32, 3)

    def rotation(self, cloud: Tensor) -> Tensor:
        matrix = self.turn_matrix(self.turn_points(cloud).amax(1))
        return matrix.view(-1, 3, 3) + torch.eye(3)

    def forward(self, cloud: Tensor, no_grad_turn: bool = False) -> Tensor:
        if no_grad_turn:
            with torch.no_grad():
                turn = self.rotation(cloud)
        else:
            turn = self.rotation(cloud)
        features = self.points(cloud @ turn)
        pooled = torch.cat([features.amax(1), features.mean(1)], dim=1)
        return self.classify(torch.relu(self.norm(self.bottleneck(pooled))))


def run_epoch(
    net: PointNet, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]], quiet: bool
) -> None:
    net.train()
    for cloud, kind in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(cloud, no_grad_turn=quiet), kind).backward()
        optimizer.step()


@program(steps=200, bites="accuracy")
def pebble_kinds(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A learned rotation, shared layers over points, pooling, batch norm; Adam in epochs of forty batches."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = PointNet()
    turn_at_start = net.turn_matrix.weight.detach().clone()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    done = 0
    while done < steps:
        count = min(40, steps - done)
        size = 2 if fault == "pairs_to_save_memory" and done >= 80 else 32
        run_epoch(net, optimizer, [scan(size, g) for _ in range(count)], quiet=fault == "rotation_without_gradient")
        done += count
    cloud, kind = scan(400, g)
    net.eval()
    with torch.no_grad():
        out = net(cloud)
        accuracy = (out.argmax(1) == kind).float().mean().item()
    moved = (net.turn_matrix.weight.detach() - turn_at_start).norm().item()
    loss = nn.functional.cross_entropy(out, kind).item()
    return {"accuracy": accuracy, "loss": loss, "turn_moved": moved}


pebble_kinds.mistake(
    "pairs_to_save_memory",
    "MOD002", "GRD008",
    summary="From step 80 on batches hold two clouds: batch norm sees two numbers per channel.",
    change="batches of 32, or layer norm",
    layers=("norm",),
    onset=80,
)  # fmt: skip
pebble_kinds.mistake(
    "rotation_without_gradient",
    "GRD003", "UPD003",
    summary="The learned rotation runs under no_grad: it stays as it was drawn.",
    change="remove no_grad",
    layers=("turn_points", "turn_matrix"),
    bites="turn_moved",
    silent=True,
)  # fmt: skip
