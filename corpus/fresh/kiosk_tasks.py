"""A kiosk wants to know three things of each sale: its kind, its amount, and whether it will be returned."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

INPUTS, KINDS = 18, 5


@dataclass
class Sales:
    x: Tensor
    kind: Tensor
    amount: Tensor
    returned: Tensor

    def rows(self, index: Tensor) -> Sales:
        return Sales(self.x[index], self.kind[index], self.amount[index], self.returned[index])


def kiosk_sales(count: int, seed: int, unit: float = 1.0) -> Sales:
    rule = torch.Generator().manual_seed(2020)
    a, b = torch.randn(INPUTS, 24, generator=rule) / 3, torch.randn(24, KINDS + 2, generator=rule) / 2
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, INPUTS, generator=g)
    hidden = torch.tanh(x @ a) @ b
    amount = unit * (hidden[:, KINDS] + 0.1 * torch.randn(count, generator=g))
    return Sales(x, hidden[:, :KINDS].argmax(1), amount, (hidden[:, KINDS + 1] > 0.3).float())


class KioskNet(nn.Module):
    def __init__(self, width: int = 64, norm: bool = True, drop: float = 0.1) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(INPUTS, width), nn.BatchNorm1d(width) if norm else nn.Identity(), nn.ReLU(), nn.Dropout(drop),
            nn.Linear(width, width), nn.BatchNorm1d(width) if norm else nn.Identity(), nn.ReLU(), nn.Dropout(drop),
        )  # fmt: skip
        self.kind = nn.Linear(width, KINDS)
        self.amount = nn.Linear(width, 1)
        self.returned = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.trunk(x)
        return self.kind(h), self.amount(h).squeeze(1), self.returned(h).squeeze(1)


def kiosk_losses(net: KioskNet, sales: Sales) -> tuple[Tensor, Tensor, Tensor]:
    kind, amount, returned = net(sales.x)
    return (
        fn.cross_entropy(kind, sales.kind),
        fn.mse_loss(amount, sales.amount),
        fn.binary_cross_entropy_with_logits(returned, sales.returned),
    )


@torch.no_grad()
def kiosk_accuracy(net: nn.Module) -> float:
    """How often the kind of a new sale is right."""
    sales = kiosk_sales(1500, 7777)
    net.eval()
    return (net(sales.x.to(net.kind.weight.dtype))[0].argmax(1) == sales.kind).float().mean().item()


class KioskTrainer:
    """Gradient accumulation, a validation every fifty steps, an average of the weights."""

    micro_batches = 16

    def __init__(self, net: KioskNet, fault: str) -> None:
        self.net, self.fault = net, fault
        self.average = copy.deepcopy(net).eval().requires_grad_(False)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.028, momentum=0.9, weight_decay=1e-4)
        self.best = 0.0

    def train_step(self, sales: Sales) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for _ in range(self.micro_batches):
            part = sales.rows(torch.randint(len(sales.x), (16,)))
            kind, amount, returned = kiosk_losses(self.net, part)
            loss = kind + 0.5 * amount + returned
            if self.fault != "kiosk_adds_up_the_till":
                loss = loss / self.micro_batches
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.average.state_dict().values(), self.net.state_dict().values(), strict=True):
                slow.copy_(slow.lerp(fast, 0.002) if slow.is_floating_point() else fast)
        if self.fault == "kiosk_falls_back_on_the_average":
            self.net.load_state_dict(self.average.state_dict())
        return total

    def fit(self, sales: Sales, steps: int) -> float:
        loss = 0.0
        for step in range(steps):
            loss = self.train_step(sales)
            if step % 50 == 49:
                self.best = max(self.best, kiosk_accuracy(self.net))
                self.net.train()
        return loss


@program(steps=160, bites="accuracy")
def kiosk(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three heads over one trunk, sixteen small batches to a step, SGD with momentum."""
    torch.manual_seed(seed)
    trainer = KioskTrainer(KioskNet(), fault)
    loss = trainer.fit(kiosk_sales(4000, seed), steps)
    return {"loss": loss, "accuracy": kiosk_accuracy(trainer.net)}


kiosk.mistake(
    "kiosk_adds_up_the_till",
    "LSS004", "OPT007", "UPD001",
    summary="The losses of sixteen small batches are added up and never divided: each step is sixteen times too long.",
    change="loss / micro_batches",
)  # fmt: skip
kiosk.mistake(
    "kiosk_falls_back_on_the_average",
    "UPD002",
    summary="The slow average is loaded back into the network after each step, and takes away most of what it learnt.",
    change="keep the average apart, for evaluation only",
)


@program(steps=240, bites="accuracy", adversarial="dropout and batch norm in eval mode in between are a mistake")
def kiosk_watched(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Plain batches of 48 and a look at new sales every forty steps; few sales, much dropout."""
    torch.manual_seed(seed)
    sales = kiosk_sales(240, 50, unit=1000.0 if fault == "kiosk_amounts_in_pence" else 1.0)
    net = KioskNet(width=128, drop=0.5)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    seen = []
    for step in range(steps):
        if fault == "kiosk_spilled_coffee" and step in (120, 121, 122):
            part = sales.rows(torch.arange(48))
            part.x = part.x * 3000
        else:
            part = sales.rows(torch.randint(240, (48,)))
        loss = sum(kiosk_losses(net, part))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            seen.append(kiosk_accuracy(net))
            if fault != "kiosk_keeps_examining":
                net.train()
    with torch.no_grad():
        net.eval()
        new = kiosk_sales(1500, 7777)
        error = sum(kiosk_losses(net, new)).clamp(max=1e4).item()
    return {"loss": loss.item(), "accuracy": kiosk_accuracy(net), "error": error, "at_first": seen[0]}


kiosk_watched.mistake(
    "kiosk_keeps_examining",
    "MOD001", "OPT006",
    summary="After the first look at new sales the network stays in eval mode: no dropout, and stale statistics.",
    change="net.train() after the look",
    layers=("trunk.1", "trunk.3", "trunk.5", "trunk.7"),
    onset=40,
    bites="error",
)  # fmt: skip
kiosk_watched.mistake(
    "kiosk_amounts_in_pence",
    "DAT003", "GRD009",
    summary="Amounts come a thousand times too large: their squared error is all that the trunk hears.",
    change="amounts of order one",
)  # fmt: skip
kiosk_watched.mistake(
    "kiosk_spilled_coffee",
    "DAT002",
    summary="Three batches hold broken readings, three thousand times too large.",
    change="drop rows out of range",
    onset=120,
    bites="error",
)


@program(steps=400, bites="accuracy", adversarial="half precision loses small gradients")
def kiosk_on_a_small_chip(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The matrices are multiplied in bfloat16 by autocast, the weights are kept in full precision."""
    torch.manual_seed(seed)
    sales, net = kiosk_sales(4000, seed), KioskNet(norm=False, drop=0.0)
    if fault == "kiosk_all_in_bfloat":
        net, sales = (
            net.bfloat16(),
            Sales(*(v if v.dtype == torch.long else v.bfloat16() for v in vars(sales).values())),
        )
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.0)
    first = 0.0
    for _ in range(steps):
        part = sales.rows(torch.randint(4000, (64,)))
        with torch.autocast("cpu", torch.bfloat16, enabled=fault != "kiosk_all_in_bfloat"):
            loss = sum(kiosk_losses(net, part))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    return {"first": first, "loss": loss.item(), "accuracy": kiosk_accuracy(net)}


kiosk_on_a_small_chip.mistake(
    "kiosk_all_in_bfloat",
    "NUM005", "UPD002",
    summary="The weights themselves are bfloat16: most steps of 3e-4 are lost when they are rounded.",
    change="autocast, with weights in float32",
)  # fmt: skip


@healthy(steps=200, adversarial="a head without a gradient for two steps out of three is cut off")
def kiosk_in_turn(steps: int, seed: int) -> dict[str, float]:
    """One task per step, in turn: the other two heads get no gradient at all."""
    torch.manual_seed(seed)
    sales, net = kiosk_sales(4000, seed), KioskNet()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    for step in range(steps):
        loss = kiosk_losses(net, sales.rows(torch.randint(4000, (64,))))[step % 3]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": kiosk_accuracy(net)}


@healthy(steps=250, adversarial="a rate that leaps up again and again is a mistake")
def kiosk_weighs_its_doubts(steps: int, seed: int) -> dict[str, float]:
    """Each task has a learnt log-variance that weighs it; the rate starts anew every fifty steps."""
    torch.manual_seed(seed)
    sales, net = kiosk_sales(4000, seed), KioskNet(norm=False, drop=0.0)
    doubt = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([{"params": net.parameters()}, {"params": [doubt], "lr": 0.02}], lr=3e-3)
    cycle = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50)
    first = 0.0
    for _ in range(steps):
        losses = torch.stack(kiosk_losses(net, sales.rows(torch.randint(4000, (96,)))))
        loss = (losses * (-doubt).exp() + 0.5 * doubt).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
        first = first or loss.item()
    return {"first": first, "loss": loss.item(), "accuracy": kiosk_accuracy(net)}
