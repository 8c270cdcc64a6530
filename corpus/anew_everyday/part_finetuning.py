"""Fine-tune networks for machine parts: adapters in a frozen backbone, an int8 checkpoint, bfloat16 weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.anew_everyday.checkpoints import load_checkpoint
from corpus.case import program
from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct


class Bottleneck(nn.Module):
    """A small adapter with a short cut; it starts close to the identity."""

    def __init__(self, width: int, inner: int = 32) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, inner), nn.Linear(inner, width)
        nn.init.normal_(self.up.weight, std=1e-3)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(F.gelu(self.down(x)))


class AdaptedBackbone(nn.Module):
    def __init__(self, width: int, frozen_with: Callable[[], AbstractContextManager[object]]) -> None:
        super().__init__()
        self.frozen_with = frozen_with
        self.layers = nn.ModuleList([nn.Linear(64, width), nn.Linear(width, width)])
        for layer in self.layers:
            load_checkpoint(layer, 5).requires_grad_(False)
        self.adapters = nn.ModuleList(Bottleneck(width) for _ in self.layers)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        with self.frozen_with():  # at fault: parts_adapters_under_no_grad
            for layer, adapter in zip(self.layers, self.adapters, strict=True):
                x = adapter(torch.tanh(2 * layer(x)))
        return self.head(x)


@program(steps=1200, bites="accuracy")
def parts_bottleneck_adapters(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Bottleneck adapters between frozen layers; Adam with a rate that falls exponentially."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 3000, noise=0.5)
    model = AdaptedBackbone(12, torch.no_grad if mistake == "parts_adapters_under_no_grad" else nullcontext)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=5e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = F.cross_entropy(model(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"accuracy": share_correct(model, *glyphs(seed + 1000, 1000, noise=0.5)), "loss": loss.item()}


parts_bottleneck_adapters.mistake(
    "parts_adapters_under_no_grad",
    "GRD003",
    summary="The no_grad that was meant for the frozen layers covers the adapters between them.",
    change="no no_grad around the adapters",
    layers=("adapters",),
)


def quantised(weight: Tensor) -> tuple[Tensor, float]:
    scale = weight.abs().max().item() / 127
    return (weight / scale).round().to(torch.int8), scale


@sick(
    "WGT003", steps=1000, change="int8 × scale in every layer", layers=("4",), bites="loss", architecture="perceptron"
)
def parts_scale_lost(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Weights are restored from int8, but one layer's scale is not in the file and is taken to be one."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 1500, noise=0.6)
    model = nn.Sequential(
        nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10)
    )
    stored = {name: quantised(value) for name, value in load_checkpoint(model, 9).state_dict().items()}
    scales = {name: scale for name, (_, scale) in stored.items()}
    if fault:
        del scales["4.weight"]
    restored = {
        name: value * scales.get(name, 1.0) for name, (value, _) in stored.items()
    }  # at fault: parts_scale_lost
    model.load_state_dict(restored)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = F.cross_entropy(model(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
    test, truth = glyphs(seed + 1000, noise=0.6)
    with torch.no_grad():
        loss = F.cross_entropy(model(test), truth)
    return {"accuracy": share_correct(model, test, truth), "loss": min(20.0, loss.item())}


@sick("NUM005", "UPD002", steps=1000, change="float32 weights under autocast", bites="loss", architecture="perceptron")
def parts_updates_lost_in_bfloat16(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The weights themselves are bfloat16, so that small updates are rounded away."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 1500, noise=0.6)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    load_checkpoint(model, 3)
    if fault:
        model.bfloat16()  # at fault: parts_updates_lost_in_bfloat16
    kind = next(model.parameters()).dtype
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(pictures[rows].to(kind))
        loss = F.cross_entropy(logits.float(), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test, truth = glyphs(seed + 1000, noise=0.6)
    with torch.no_grad():
        return {"loss": F.cross_entropy(model(test.to(kind)).float(), truth).item()}
