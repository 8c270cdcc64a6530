"""Spring tide, neap tide or storm? A stack of dilated convolutions reads a tide gauge."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

HOURS, KINDS, WIDTH = 48, 3, 16


def gauge(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(KINDS, (n,), generator=g)
    t = torch.arange(HOURS).float()
    phase = 2 * math.pi * torch.rand(n, 1, generator=g)
    height = torch.where(kind == 0, 1.2, 0.8)[:, None] * torch.sin(2 * math.pi * t / 12.4 + phase)
    surge_at = HOURS * torch.rand(n, 1, generator=g)
    surge = torch.exp(-(((t - surge_at) / 4) ** 2)) * (kind == 2).float()[:, None]
    return (height + surge + 0.2 * torch.randn(n, HOURS, generator=g))[:, None], kind


class Layer(nn.Module):
    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=dilation, dilation=dilation)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(torch.relu(self.norm(self.conv(x))))


class TideNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.intake = nn.Conv1d(1, WIDTH, 5, padding=2)
        self.layers = nn.ModuleList(Layer(2**i) for i in range(4))
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, KINDS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.intake(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(torch.cat([x.mean(-1), x.amax(-1)], 1))


def share_told(net: nn.Module, seed: int) -> float:
    x, y = gauge(300, seed + 15)
    net.eval()
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


@program(steps=120, bites="accuracy")
def tide_gauge(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two groups of parameters, and a rate that is lowered when the loss stops falling."""
    torch.manual_seed(seed)
    x, y = gauge(600, seed)
    net = TideNet()
    body = [*net.intake.parameters(), *net.layers.parameters()]
    head_rate = 5e-8 if fault == "head_at_a_hundred_thousandth" else 5e-3
    optimizer = torch.optim.Adam(
        [{"params": body, "lr": 3e-3}, {"params": net.head.parameters(), "lr": head_rate}], weight_decay=1e-5
    )
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max" if fault == "plateau_upside_down" else "min", factor=0.3, patience=8
    )
    if fault == "eval_from_the_start":
        net.eval()
    start = nn.utils.parameters_to_vector(net.head.parameters()).detach().clone()
    in_train_mode, recent = 0, 1.1
    for step in range(steps):
        in_train_mode += net.training
        rows = torch.randint(600, (40,))
        if fault != "cleared_once_in_an_epoch" or step % 15 == 0:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        recent = 0.9 * recent + 0.1 * loss.item()
        schedule.step(recent)
    moved = (nn.utils.parameters_to_vector(net.head.parameters()) - start).norm().item()
    return {"accuracy": share_told(net, seed), "moved": moved, "in_train_mode": in_train_mode / steps}


tide_gauge.mistake(
    "head_at_a_hundred_thousandth",
    "UPD002", "UPD003", "OPT007",
    summary="The head's rate is 5e-8; it was to be 5e-3.",
    change="a rate of 5e-3",
    layers=("head",),
    bites="moved",
    silent=True,
)  # fmt: skip
tide_gauge.mistake(
    "plateau_upside_down",
    "OPT007", "UPD002",
    summary="The rate is lowered whenever the loss has not risen.",
    change="mode='min'",
)  # fmt: skip
tide_gauge.mistake(
    "eval_from_the_start",
    "MOD001",
    summary="The model was loaded in eval mode and is trained so.",
    change="call train()",
    layers=[f"layers.{i}.{part}" for i in range(4) for part in ("norm", "drop")],
    bites="in_train_mode",
    silent=True,
)
tide_gauge.mistake(
    "cleared_once_in_an_epoch",
    "GRD007",
    summary="zero_grad() stands in the loop over epochs, not in the one over batches.",
    change="clear the gradients in each step",
)


@program(steps=120, bites="accuracy", adversarial="layers that learn a hundred times slower than others are a mistake")
def tide_layerwise_rates(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Each layer learns at 0.4 times the rate of the one above it."""
    torch.manual_seed(seed)
    x, y = gauge(600, seed)
    net = TideNet()
    parts = [net.head, *reversed([*net.layers]), net.intake]
    groups = [{"params": part.parameters(), "lr": 8e-3 * 0.4**i} for i, part in enumerate(parts)]
    optimizer = torch.optim.AdamW(groups)
    for _ in range(steps):
        rows = torch.randint(600, (40,))
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": share_told(net, seed)}


@program(steps=120, bites="accuracy")
def tide_mixed_up(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Mixup: every sample and its label is a blend of two."""
    torch.manual_seed(seed)
    x, y = gauge(600, seed)
    net = TideNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    for _ in range(steps):
        one, two = torch.randint(600, (40,)), torch.randint(600, (40,))
        share = 0.75 + 0.25 * torch.rand(())
        target = nn.functional.one_hot(y, KINDS).float()
        blended = share * target[one] + (1 - share) * target[two]
        loss = nn.functional.cross_entropy(net(share * x[one] + (1 - share) * x[two]), blended)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": share_told(net, seed)}
