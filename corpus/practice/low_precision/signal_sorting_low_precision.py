"""Sorting small signals with fewer bits: autocast, half precision and what goes wrong with them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from corpus.case import program

INPUTS, CLASSES = 32, 6


def signals(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(99))
    y = torch.randint(CLASSES, (n,), generator=g)
    sign = torch.randint(2, (n, 1), generator=g) * 2 - 1  # a signal and its mirror image are the same class
    return sign * centres[y] + 0.9 * torch.randn(n, INPUTS, generator=g), y


class Sorter(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.rise = nn.Linear(INPUTS, width)
        self.middle = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.fall = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fall(self.middle(torch.relu(self.rise(x))))


def share_sorted(model: nn.Module, seed: int) -> float:
    x, y = signals(400, seed + 71)
    with torch.no_grad():
        return (model.float()(x).nan_to_num().argmax(1) == y).float().mean().item()


@program(steps=150, bites="accuracy")
def mixed_sorter(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Weights in single precision, activations in bfloat16, Adam with a cautious rate."""
    torch.manual_seed(seed)
    x, y = signals(1000, seed)
    model = Sorter()
    if fault == "everything_in_bfloat16":
        model, x = model.bfloat16(), x.bfloat16()
    opt = torch.optim.Adam(model.parameters(), lr=2e-4)
    for _ in range(steps):
        pick = torch.randint(1000, (64,))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=fault != "everything_in_bfloat16"):
            loss = cross_entropy(model(x[pick]).float(), y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"accuracy": share_sorted(model, seed)}


@program(steps=150, bites="accuracy")
def half_sorter(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Float16 with a loss scaler under SGD, unscaled before clipping."""
    torch.manual_seed(seed)
    x, y = signals(1000, seed)
    model = Sorter()
    opt = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    skipped = 0
    for step in range(steps):
        pick = torch.randint(1000, (64,))
        signal = x[pick]
        if fault == "channel_out_of_range" and step >= 60:
            signal = signal * 30_000  # the recorder fell back to raw counts
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(signal)
        loss = cross_entropy(logits.float(), y[pick])
        opt.zero_grad()
        scaler.scale(loss).backward()
        if fault != "clipped_while_scaled":
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        skipped += scaler.get_scale() < before
    return {"accuracy": share_sorted(model, seed), "skipped": skipped / steps}


@program(steps=150, bites="accuracy")
def faint_sorter(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A loss that is weighed with 1e-5, in float16 with a scaler; Adam divides the weight out."""
    torch.manual_seed(seed)
    x, y = signals(1000, seed)
    model = Sorter()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-15)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=fault != "half_without_a_scaler")
    for _ in range(steps):
        pick = torch.randint(1000, (64,))
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x[pick])
            loss = 1e-5 * cross_entropy(logits, y[pick])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    return {"accuracy": share_sorted(model, seed)}


mixed_sorter.mistake(
    "everything_in_bfloat16",
    "NUM005", "UPD002", "UPD003",
    summary="The weights are bfloat16 too: steps smaller than a four-hundredth of a weight are rounded away.",
    change="keep the weights in single precision",
)  # fmt: skip
faint_sorter.mistake(
    "half_without_a_scaler",
    "NUM005", "GRD004",
    summary="Float16 without a loss scaler: gradients below 6e-8 are zero.",
    change="scale the loss",
)  # fmt: skip
half_sorter.mistake(
    "channel_out_of_range",
    "NUM005", "NUM004", "NUM002", "NUM001", "DAT001", "DAT002",
    summary="Raw counts after a restart of the recorder: the first layer overflows float16.",
    change="scale the signal",
    onset=60,
    bites="skipped",
    silent=True,
)  # fmt: skip
half_sorter.mistake(
    "clipped_while_scaled",
    "GRD010", "UPD002", "OPT007",
    summary="Gradients are clipped before they are unscaled, so what is left of them is a thousandth.",
    change="unscale first",
)  # fmt: skip


@program(steps=150, bites="accuracy", adversarial="an infinite gradient is the end of a training")
def scaler_finds_its_scale(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The scale starts far too high: the scaler skips steps until the gradients fit into float16."""
    torch.manual_seed(seed)
    x, y = signals(1000, seed)
    model = Sorter()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=40)
    for _ in range(steps):
        pick = torch.randint(1000, (64,))
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x[pick])
        loss = cross_entropy(logits.float(), y[pick])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    return {"accuracy": share_sorted(model, seed)}


@program(steps=100, bites="accuracy", adversarial="gradients that exist before the backward pass were not cleared")
def mixed_accumulated(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """bfloat16 autocast and four micro-batches for a step."""
    torch.manual_seed(seed)
    x, y = signals(1000, seed)
    model = Sorter()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        opt.zero_grad()
        for _ in range(4):
            pick = torch.randint(1000, (24,))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = cross_entropy(model(x[pick]), y[pick]) / 4
            loss.backward()
        opt.step()
    return {"accuracy": share_sorted(model, seed)}
