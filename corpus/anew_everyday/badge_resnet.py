"""Tell badges apart with a small residual network that is built from a registry of blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.anew_everyday.blocks import build_all
from corpus.case import program

CLASSES, WIDTH = 8, 16


def badges(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Colour pictures of 12 × 12 with one of eight stamps somewhere on a noisy ground."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=g)
    stamps = torch.randn(CLASSES, 3, 5, 5, generator=torch.Generator().manual_seed(77))
    pictures = 0.8 * torch.randn(count, 3, 12, 12, generator=g)
    corners = torch.randint(8, (count, 2), generator=g).tolist()
    for i, ((top, left), label) in enumerate(zip(corners, labels.tolist(), strict=True)):
        pictures[i, :, top : top + 5, left : left + 5] += stamps[label]
    return pictures, labels


@torch.no_grad()
def accuracy_of(model: nn.Module, pictures: Tensor, labels: Tensor) -> float:
    return (model(pictures).argmax(1) == labels).float().mean().item()


@program(steps=200, bites="accuracy")
def badge_resnet(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Residual network with batch norm, label smoothing, one-cycle rate and a validation now and then."""
    torch.manual_seed(seed)
    pictures, labels = badges(seed, 768)
    validation = badges(seed + 900, 256)
    groups = WIDTH * 2 if mistake == "badge_group_of_one_channel" else 4  # at fault: badge_group_of_one_channel
    plan: list[dict[str, Any]] = [
        {"kind": "stem", "inputs": 3, "width": WIDTH},
        {"kind": "residual", "width": WIDTH, "out": WIDTH},
        {"kind": "residual", "width": WIDTH, "out": WIDTH * 2, "stride": 2},
    ]
    plan.append({"kind": "pooled_head", "width": WIDTH * 2, "classes": CLASSES, "groups": groups})
    model = build_all(plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=max(steps, 2))
    best = 0.0

    def validate() -> float:
        model.eval()  # at fault: badge_left_in_evaluation
        share = accuracy_of(model, *validation)
        if mistake != "badge_left_in_evaluation":
            model.train()
        return share

    model.train()
    for step in range(steps):
        batch = torch.randint(len(pictures), (48,))
        loss = F.cross_entropy(model(pictures[batch]), labels[batch], label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 19:
            best = max(best, validate())
    model.eval()
    return {
        "accuracy": accuracy_of(model, *validation),
        "best": best,
        "loss": loss.item(),
    }


badge_resnet.mistake(
    "badge_left_in_evaluation",
    "MOD001",
    summary="The first validation puts the model into evaluation mode and nobody puts it back.",
    change="model.train() after the validation",
    layers=("0.norm", "1.norm1", "1.norm2", "2.norm1", "2.norm2", "3.dropout"),
    onset=20,
)
badge_resnet.mistake(
    "badge_group_of_one_channel",
    "MOD002",
    summary="Group norm behind the pooling has as many groups as channels, so that every output is its bias.",
    change="four groups",
    layers=("3.norm",),
)
