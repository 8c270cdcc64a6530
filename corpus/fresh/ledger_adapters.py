"""Booking entries get an account: a reader that other people trained is fitted to one company by low-rank adapters."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

FIELDS, WIDTH, ACCOUNTS = 20, 64, 8


class LedgerReader(nn.Module):
    """Three residual layers over the fields of an entry."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(FIELDS, WIDTH)
        self.body = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.classifier = nn.Linear(WIDTH, ACCOUNTS)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.stem(x))
        for layer in self.body:
            h = h + torch.tanh(layer(h))
        return self.classifier(h)


def ledger_checkpoint() -> LedgerReader:
    """The published reader: the same weights for everyone."""
    state = torch.get_rng_state()
    torch.manual_seed(1729)
    reader = LedgerReader()
    for layer in (reader.stem, *reader.body):
        nn.init.orthogonal_(layer.weight, gain=1.3)
    nn.init.normal_(reader.classifier.weight, std=0.25)
    torch.set_rng_state(state)
    return reader


def ledger_entries(count: int, seed: int, shift: float = 3.0) -> tuple[Tensor, Tensor]:
    """Entries of a company whose customs differ from the published ones in a few directions."""
    teacher = ledger_checkpoint()
    customs = torch.Generator().manual_seed(31)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FIELDS, generator=g)
    with torch.no_grad():
        for layer in teacher.body:
            u = torch.randn(WIDTH, 2, generator=customs) / math.sqrt(WIDTH)
            v = torch.randn(2, WIDTH, generator=customs) / math.sqrt(WIDTH)
            layer.weight += shift * 2 * u @ v
        return x, teacher(x).argmax(1)


class LowRank(nn.Module):
    """A frozen linear layer and a trained correction of rank r."""

    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 8.0, blank: bool = False) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank
        if not blank:
            nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scaling * (x @ self.down.T @ self.up.T)


def ledger_adapt(reader: LedgerReader, **options: float) -> LedgerReader:
    reader.requires_grad_(False)
    for i, layer in enumerate(reader.body):
        reader.body[i] = LowRank(layer, **options)
    return reader


def ledger_batches(x: Tensor, y: Tensor, size: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    done = 0
    while True:
        for rows in torch.randperm(len(x)).split(size):
            if done == steps:
                return
            yield x[rows], y[rows]
            done += 1


@torch.no_grad()
def ledger_accuracy(reader: nn.Module) -> float:
    x, y = ledger_entries(1500, 9001)
    return (reader.eval()(x).argmax(1) == y).float().mean().item()


@program(steps=240, bites="accuracy")
def ledger(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adapters of rank four in three layers and nothing else, by AdamW with a linear decay."""
    torch.manual_seed(seed)
    reader = ledger_checkpoint()
    if fault == "ledger_optimizer_came_first":
        optimizer = torch.optim.AdamW(reader.parameters(), lr=5e-3, weight_decay=0.01)
        ledger_adapt(reader)
    else:
        if fault == "ledger_two_blank_factors":
            ledger_adapt(reader, blank=True)
        elif fault == "ledger_alpha_for_another_rank":
            ledger_adapt(reader, alpha=2048.0)
        else:
            ledger_adapt(reader)
        decay = 40.0 if fault == "ledger_decay_of_forty" else 0.01
        optimizer = torch.optim.AdamW([p for p in reader.parameters() if p.requires_grad], lr=5e-3, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    for x, y in ledger_batches(*ledger_entries(6000, 60 + seed), 64, steps):
        loss = fn.cross_entropy(reader(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"loss": loss.item(), "accuracy": ledger_accuracy(reader)}


ledger.mistake(
    "ledger_two_blank_factors",
    "GRD004", "WGT002",
    summary="Both factors of each adapter start at zero: neither ever gets a gradient.",
    change="draw `down` at random and start `up` at zero",
    layers=("body.0", "body.1", "body.2"),
)  # fmt: skip
ledger.mistake(
    "ledger_alpha_for_another_rank",
    "UPD001", "ACT002",
    summary="Alpha is 2048 for rank four: every step of an adapter moves its layer five hundred times as far.",
    change="alpha = 2 * rank",
    layers=("body.0", "body.1", "body.2"),
)  # fmt: skip
ledger.mistake(
    "ledger_decay_of_forty",
    "OPT008", "WGT005",
    summary="Weight decay of 40: what the adapters learn is taken back at once.",
    change="weight_decay=0.01",
)  # fmt: skip
ledger.mistake(
    "ledger_optimizer_came_first",
    "UPD003",
    summary="The optimizer is built before the adapters are put in: it has never heard of them.",
    change="adapt the reader, then build the optimizer",
    layers=("body.0", "body.1", "body.2"),
)


@healthy(steps=200, adversarial="a backbone that does not move is forgotten by the optimizer")
def ledger_biases_only(steps: int, seed: int) -> dict[str, float]:
    """Only biases and the classifier are trained; every other weight stays as published."""
    torch.manual_seed(seed)
    reader = ledger_checkpoint()
    for name, parameter in reader.named_parameters():
        parameter.requires_grad = name.endswith("bias") or name.startswith("classifier")
    optimizer = torch.optim.Adam((p for p in reader.parameters() if p.requires_grad), lr=0.02)
    before = ledger_accuracy(reader)
    for x, y in ledger_batches(*ledger_entries(6000, 60 + seed), 64, steps):
        optimizer.zero_grad()
        loss = fn.cross_entropy(reader(x), y)
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "before": before, "accuracy": ledger_accuracy(reader)}


@healthy(steps=240, adversarial="layers that do not move for a hundred steps are stuck")
def ledger_thawed_from_the_top(steps: int, seed: int) -> dict[str, float]:
    """Gradual unfreezing: the classifier first, one more layer every fifty steps, each with a lower rate."""
    torch.manual_seed(seed)
    reader = ledger_checkpoint().requires_grad_(False)
    before = ledger_accuracy(reader)
    order = [reader.classifier, *reversed(reader.body), reader.stem]
    order[0].requires_grad_(True)
    optimizer = torch.optim.Adam(order[0].parameters(), lr=3e-3)
    for step, (x, y) in enumerate(ledger_batches(*ledger_entries(6000, 60 + seed), 64, steps)):
        if step and step % 50 == 0:
            depth = step // 50
            optimizer.add_param_group(
                {"params": order[depth].requires_grad_(True).parameters(), "lr": 3e-3 * 0.7**depth}
            )
        loss = fn.cross_entropy(reader(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "before": before, "accuracy": ledger_accuracy(reader)}


@healthy(steps=240, adversarial="parameter groups whose rates differ by a factor of sixteen are a mistake")
def ledger_fast_up_factors(steps: int, seed: int) -> dict[str, float]:
    """The `up` factors learn sixteen times faster than the `down` ones, in bf16 autocast; the base is frozen."""
    torch.manual_seed(seed)
    reader = ledger_adapt(ledger_checkpoint(), rank=8, alpha=8.0)
    reader.classifier.requires_grad_(True)
    named = dict(reader.named_parameters())
    groups = [
        {"params": [p for name, p in named.items() if name.endswith("down")], "lr": 5e-4},
        {"params": [p for name, p in named.items() if name.endswith("up")], "lr": 8e-3},
        {"params": reader.classifier.parameters(), "lr": 2e-3},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    before = ledger_accuracy(reader)
    for x, y in ledger_batches(*ledger_entries(6000, 60 + seed), 48, steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = fn.cross_entropy(reader(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_((p for p in reader.parameters() if p.requires_grad), 1.0)
        optimizer.step()
    return {"loss": loss.item(), "before": before, "accuracy": ledger_accuracy(reader)}
