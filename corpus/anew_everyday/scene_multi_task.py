"""Several tasks on one trunk: what is in the scene, how far it is and how bright, with losses added up by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

Loss = Callable[[Tensor, Tensor], Tensor]


def scenes(seed: int, count: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Thirty measurements; the class, the depth in metres and the light that follow from them."""
    fixed = torch.Generator().manual_seed(6)
    mix = torch.randn(8, 30, generator=fixed) / 8**0.5
    corners = torch.randn(5, 4, generator=fixed)
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 8, generator=g)
    x = hidden @ mix + 0.1 * torch.randn(count, 30, generator=g)
    kind = (hidden[:, :4] @ corners.T).argmax(1)
    depth = 4 + 1.5 * torch.tanh(hidden[:, 4] * hidden[:, 5]) + 0.5 * hidden[:, 6]
    return x, {"kind": kind, "depth": depth, "light": torch.sin(2 * hidden[:, 7])}


class Scene(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(30, 64), nn.SiLU(), nn.Linear(64, 48), nn.SiLU())
        self.kind, self.depth, self.light = nn.Linear(48, 5), nn.Linear(48, 1), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.trunk(x)
        return {"kind": self.kind(h), "depth": self.depth(h).squeeze(1), "light": self.light(h).squeeze(1)}


LOSSES: dict[str, Loss] = {"kind": F.cross_entropy, "depth": F.mse_loss, "light": F.smooth_l1_loss}


@program(steps=600, bites="accuracy")
def scene_three_tasks(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A trunk with three heads whose losses are added, SGD with momentum and clipping."""
    torch.manual_seed(seed)
    x, truth = scenes(seed, 4000)
    if mistake == "scene_depth_in_millimetres":
        truth["depth"] = 1000 * truth["depth"]  # at fault: scene_depth_in_millimetres
    model = Scene()
    parts = [model.trunk, model.kind, model.depth, model.light]
    if mistake == "scene_head_left_out":
        parts = [model.trunk, model.depth, model.light]  # at fault: scene_head_left_out
    optimizer = torch.optim.SGD(chain.from_iterable(p.parameters() for p in parts), lr=0.03, momentum=0.9)
    head_before = model.kind.weight.detach().clone()
    for _ in range(steps):
        rows = torch.randint(len(x), (96,))
        outputs = model(x[rows])
        losses = {name: loss(outputs[name], truth[name][rows]) for name, loss in LOSSES.items()}
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    head_moved = (model.kind.weight - head_before).norm().item()
    x, truth = scenes(seed + 2, 1500)
    with torch.no_grad():
        outputs = model(x)
    return {
        "accuracy": (outputs["kind"].argmax(1) == truth["kind"]).float().mean().item(),
        "light": F.mse_loss(outputs["light"], truth["light"]).item(),
        "head_moved": head_moved,
    }


scene_three_tasks.mistake(
    "scene_depth_in_millimetres",
    "DAT003",
    "GRD009",
    summary="Depth is in millimetres: its squared error drowns the two other tasks.",
    change="metres",
    layers=("depth",),
)
scene_three_tasks.mistake(
    "scene_head_left_out",
    "UPD003",
    summary="One of three heads is missing from the list that the optimizer is built from.",
    change="all parts",
    layers=("kind",),
    bites="head_moved",
    silent=True,
)
