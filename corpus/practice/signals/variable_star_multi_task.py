"""Light curves of variable stars: the class of the star, and how long one period takes."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn, optim

from corpus.case import program

CLASSES, POINTS = 4, 96


def light_curves(seed: int, count: int = 1200) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sine, eclipse, saw tooth, and two tones at once; brightness in standard units."""
    rng = np.random.default_rng(7_000 + seed)
    kind = rng.integers(0, CLASSES, count)
    period = rng.uniform(12, 40, count)
    turn = (np.arange(POINTS)[None] / period[:, None] + rng.uniform(0, 1, (count, 1))) % 1.0
    sine = np.sin(2 * np.pi * turn)
    eclipse = np.where(turn < 0.15, -2.2, 0.4)
    saw = 3.4 * (turn - 0.5)
    double = 0.8 * np.sin(2 * np.pi * turn) + 0.8 * np.sin(4 * np.pi * turn + 1)
    flux = np.choose(kind[:, None], [sine, eclipse, saw, double]) + 0.45 * rng.standard_normal((count, POINTS))
    return (
        torch.from_numpy(flux.astype("float32")),
        torch.from_numpy(kind),
        torch.from_numpy(((period - 26) / 8).astype("float32")),
    )


class Backbone(nn.Module):
    def __init__(self, channels: int = 20) -> None:
        super().__init__()
        self.conv_a = nn.Conv1d(1, channels, 9, padding=4)
        self.norm_a = nn.BatchNorm1d(channels)
        self.conv_b = nn.Conv1d(channels, channels, 9, padding=4)
        self.norm_b = nn.BatchNorm1d(channels)

    def forward(self, flux: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool1d(torch.relu(self.norm_a(self.conv_a(flux[:, None]))), 4)
        x = nn.functional.max_pool1d(torch.relu(self.norm_b(self.conv_b(x))), 4)
        return x.flatten(1)


class Orrery(nn.Module):
    def __init__(self, cut: str = "") -> None:
        super().__init__()
        self.cut = cut
        self.backbone = Backbone()
        self.neck = nn.Sequential(nn.Linear(120, 40), nn.ReLU())
        self.kind = nn.Linear(40, CLASSES)
        self.period = nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, flux: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.backbone(flux)
        if self.cut == "between":
            x = x.detach()
        x = self.neck(x)
        return self.kind(x), self.period(x).squeeze(1)


def evaluate(model: Orrery, curves: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        kind, period = model(curves[0])
    return {
        "accuracy": (kind.argmax(1) == curves[1]).float().mean().item(),
        "error": (period - curves[2]).square().mean().sqrt().item(),
    }


def first_of(module: nn.Module) -> torch.Tensor:
    return next(module.parameters()).detach().clone()


@program(steps=150, bites="accuracy")
def star_curves(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two heads on a convolutional backbone, both losses added, AdamW with warm-up."""
    torch.manual_seed(seed)
    flux, kind, period = light_curves(seed)
    held_out = flux[900:], kind[900:], period[900:]
    model = Orrery(cut="between" if fault == "star_features_detached" else "")

    if fault == "star_neck_mostly_silent":
        with torch.no_grad():
            model.get_parameter("neck.0.bias")[:37] = -15.0
    parameters = [*model.backbone.parameters(), *model.neck.parameters(), *model.period.parameters()]
    if fault != "star_kind_head_not_listed":
        parameters += model.kind.parameters()
    if fault == "star_backbone_frozen_like_the_tutorial":
        for parameter in model.backbone.parameters():
            parameter.requires_grad = False
    optimizer = optim.AdamW(parameters, lr=3e-3, weight_decay=0.01)
    if fault == "star_period_head_deepened_later":
        model.period = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 1))
    warmup = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=15)

    heads = {"kind_moved": first_of(model.kind), "period_moved": first_of(model.period)}
    order = torch.Generator().manual_seed(seed)
    total = torch.zeros(())
    for step in range(steps):
        if fault == "star_head_replaced_in_flight" and step == 60:
            model.kind = nn.Linear(40, CLASSES)  # "start the classes afresh"
            heads["kind_moved"] = first_of(model.kind)
        model.train()
        pick = torch.randperm(900, generator=order)[:48]
        logits, guess = model(flux[pick])
        if fault == "star_period_from_values":
            guess = torch.tensor(guess.tolist(), requires_grad=True)
        total = nn.functional.cross_entropy(logits, kind[pick]) + nn.functional.mse_loss(guess, period[pick])
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        warmup.step()
    moved = {
        "kind_moved": (first_of(model.kind) - heads["kind_moved"]).norm().item(),
        "period_moved": (first_of(model.period) - heads["period_moved"]).norm().item(),
    }
    return {"loss": total.item(), **evaluate(model, held_out), **moved}


star_curves.mistake(
    "star_features_detached",
    "GRD003", "UPD003",
    summary="The features are detached before the neck, left over from a two-stage training: no backbone learns.",
    change="remove detach()",
    layers=("backbone",),
)  # fmt: skip
star_curves.mistake(
    "star_neck_mostly_silent",
    "ACT001",
    "GRD004",
    summary="Most biases of the neck start far below zero, from a file of thresholds: three of its units ever fire.",
    change="biases of zero",
    layers=("neck",),
    bites="loss",
)
star_curves.mistake(
    "star_kind_head_not_listed",
    "UPD003",
    summary="The optimizer's list of parameters leaves out the head for the class.",
    change="model.parameters()",
    layers=("kind",),
    bites="kind_moved",
    silent=True,
)
star_curves.mistake(
    "star_backbone_frozen_like_the_tutorial",
    "UPD003", "GRD003",
    summary="The backbone is frozen as in the fine-tuning tutorial, but it was never trained: it is as drawn.",
    change="train the backbone too",
    layers=("backbone",),
)  # fmt: skip
star_curves.mistake(
    "star_period_head_deepened_later",
    "UPD003",
    summary="The head for the period is made wider after the optimizer was built, which still holds the old one.",
    change="build the optimizer after the model is complete",
    layers=("period",),
    bites="period_moved",
    silent=True,
)
star_curves.mistake(
    "star_head_replaced_in_flight",
    "UPD003",
    summary="At step 60 the class head is drawn anew; the optimizer goes on moving the one that is gone.",
    change="add the new head to the optimizer",
    layers=("kind",),
    bites="kind_moved",
    silent=True,
    onset=60,
)
star_curves.mistake(
    "star_period_from_values",
    "GRD003", "UPD003",
    summary="The guessed period goes through tolist() on its way to the loss: no gradient comes back to its head.",
    change="hand the tensor itself to the loss",
    layers=("period",),
    bites="error",
)  # fmt: skip


@program(steps=140, adversarial="a parameter without a gradient in most steps is forgotten")
def star_heads_by_turns(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two surveys, one head each: a batch comes from one of them, so in each step one head rests."""
    torch.manual_seed(seed)
    surveys = [light_curves(seed), light_curves(seed + 500)]
    backbone = Backbone(12)
    model = nn.ModuleDict({"backbone": backbone, "north": nn.Linear(72, CLASSES), "south": nn.Linear(72, CLASSES)})
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    order = torch.Generator().manual_seed(seed)
    losses = []
    for step in range(steps):
        south = step % 3 == 2
        flux, kind, _ = surveys[south]
        pick = torch.randint(1200, (48,), generator=order)
        loss = nn.functional.cross_entropy(model["south" if south else "north"](backbone(flux[pick])), kind[pick])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-6:]) / 6}


@program(steps=120)
def star_attention_pool(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One attention layer over twelve pieces of a curve, positions learnt, in bfloat16 where that is allowed."""
    torch.manual_seed(seed)
    flux, kind, _ = light_curves(seed + 900)
    pieces = nn.Linear(8, 32)
    places = nn.Embedding(12, 32)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.ModuleDict({"pieces": pieces, "places": places, "layer": layer, "out": nn.Linear(32, CLASSES)})
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    order = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        pick = torch.randint(1200, (48,), generator=order)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            tokens = pieces(flux[pick].view(-1, 12, 8)) + places.weight
            logits = model["out"](layer(tokens).mean(1))
        loss = nn.functional.cross_entropy(logits.float(), kind[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-6:]) / 6}
