"""Fruit on a conveyor belt, 16 by 16 pixels as bytes from a camera: which of five kinds is it?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from corpus.case import program

KINDS, SIDE = 5, 16


def photograph(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Disc, ring, square, cross or stripes somewhere in the picture, in bytes, with a noisy background."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(KINDS, (count,), generator=g)
    row, column = (torch.randint(5, SIDE - 5, (2, count, 1, 1), generator=g)).unbind(0)
    size = torch.randint(3, 5, (count, 1, 1), generator=g)
    dy = torch.arange(SIDE).view(1, -1, 1) - row
    dx = torch.arange(SIDE).view(1, 1, -1) - column
    far, box = (dx**2 + dy**2).float().sqrt(), torch.maximum(dx.abs(), dy.abs())
    shapes = torch.stack(
        [
            far <= size,
            (far <= size) & (far > size - 1.6),
            (box <= size) & (box > size - 2),
            (box <= size) & ((dx.abs() < 1) | (dy.abs() < 1)),
            (box <= size) & (dx % 2 == 0),
        ]
    )
    shape = shapes[kind, torch.arange(count)].float()
    light = 90 + 80 * torch.rand(count, 1, 1, generator=g)
    picture = 40 + light * shape + 28 * torch.randn(count, SIDE, SIDE, generator=g)
    return picture.clamp(0, 255).byte().unsqueeze(1), kind


class FruitNet(nn.Module):
    def __init__(self, dropout: float = 0.2, norm: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16) if norm else nn.Identity())
        self.middle = nn.Conv2d(16, 32, 3, padding=1)
        self.top = nn.Conv2d(32, 32, 3, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(32 * 4, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.stem(x).relu(), 2)
        x = nn.functional.max_pool2d(self.middle(x).relu(), 2)
        x = nn.functional.adaptive_avg_pool2d(self.top(x).relu(), 2)
        return self.classifier(self.dropout(x.flatten(1)))


def endless(count: int, batch: int, shuffle: bool = True) -> Iterator[Tensor]:
    while True:
        order = torch.randperm(count) if shuffle else torch.arange(count)
        yield from order.split(batch)


class Sorter:
    """A trainer as one writes it for the third project in a row."""

    def __init__(self, net: nn.Module, optimizer: torch.optim.Optimizer, values: str = "standard") -> None:
        self.net, self.optimizer, self.values = net, optimizer, values
        self.loss = math.nan

    def prepare(self, pictures: Tensor) -> Tensor:
        if self.values == "bytes":
            return pictures.float()
        if self.values == "divided twice":
            return pictures.float() / 255 / 255
        return (pictures.float() - 70) / 64

    def fit_batch(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        self.loss = loss.item()

    @torch.no_grad()
    def accuracy(self, pictures: Tensor, kinds: Tensor) -> float:
        self.net.eval()
        right = (self.net(self.prepare(pictures)).argmax(1) == kinds).float().mean().item()
        self.net.train()
        return right

    def result(self, pictures: Tensor, kinds: Tensor) -> dict[str, float]:
        loss = self.loss if math.isfinite(self.loss) else 1e6
        return {"loss": min(loss, 1e6), "accuracy": self.accuracy(pictures, kinds)}


@program(steps=160, bites="accuracy")
def fruit_sorter(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three convolutions and a dropout, SGD with momentum, four passes over the belt."""
    torch.manual_seed(seed)
    pictures, kinds = photograph(1280, seed)
    test = photograph(400, seed + 7000)
    if fault == "fruit_labels_of_another_morning":
        kinds = kinds[torch.randperm(len(kinds))]
    if fault == "fruit_tired_labeller":
        wrong = torch.rand(len(kinds)) < 0.7
        kinds = torch.where(wrong, torch.randint(KINDS, kinds.shape), kinds)
    if fault == "fruit_basket_after_basket":
        order = kinds.argsort()
        pictures, kinds = pictures[order], kinds[order]
    net = FruitNet(dropout=0.95 if fault == "fruit_share_that_stays" else 0.2)
    values = {"fruit_in_bytes": "bytes", "fruit_divided_twice": "divided twice"}.get(fault, "standard")
    trainer = Sorter(net, torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4), values)
    batches = endless(len(pictures), 32, shuffle=fault != "fruit_basket_after_basket")
    for step in range(steps):
        idx = next(batches)
        x, y = trainer.prepare(pictures[idx]), kinds[idx]
        if fault == "fruit_pictures_drawn_again" and step >= 100:  # the new loader shuffles the pictures alone
            x = trainer.prepare(pictures[torch.randint(len(pictures), idx.shape)])
        if fault == "fruit_two_raw_baskets" and step in (110, 111):  # a second camera, not yet converted
            x = pictures[idx].float()
        trainer.fit_batch(x, y)
    return trainer.result(*test)


fruit_sorter.mistake(
    "fruit_in_bytes",
    "DAT001", "ACT001", "UPD001", "OPT005",
    summary="The pictures go into the network as bytes, 0 to 255, with the rate meant for standardised ones.",
    change="subtract the mean and divide by the spread",
)  # fmt: skip
fruit_sorter.mistake(
    "fruit_divided_twice",
    "DAT001", "OPT005",
    summary="The data set divides by 255 and so does the loop: all inputs are below four thousandths.",
    change="divide once",
)  # fmt: skip
fruit_sorter.mistake(
    "fruit_share_that_stays",
    "GRD008", "MOD001", "OPT005", "OPT002",
    summary="Dropout is given the share to keep, 0.95, and drops that much.",
    change="nn.Dropout(0.05)",
    layers=("dropout", "classifier"),
)  # fmt: skip
fruit_sorter.mistake(
    "fruit_basket_after_basket",
    "DAT005",
    summary="The folders are read one after another and never shuffled: batch after batch of one kind.",
    change="shuffle=True",
)  # fmt: skip
fruit_sorter.mistake(
    "fruit_labels_of_another_morning",
    "DAT004", "OPT005",
    summary="The list of kinds is that of another morning: no label belongs to its picture.",
    change="the list of the same morning",
)  # fmt: skip
fruit_sorter.mistake(
    "fruit_tired_labeller",
    "DAT004", "GRD008",
    summary="Seven labels of ten are guessed.",
    change="label again",
)  # fmt: skip
fruit_sorter.mistake(
    "fruit_pictures_drawn_again",
    "DAT004", "OPT003", "OPT005", "OPT001",
    summary="From step 100 a new loader shuffles the pictures without their labels.",
    change="one permutation for both",
    onset=100,
)  # fmt: skip
fruit_sorter.mistake(
    "fruit_two_raw_baskets",
    "DAT002", "OPT003", "GRD006", "OPT001", "NUM001", "NUM002",
    summary="At steps 110 and 111 the pictures come from a second camera as raw bytes.",
    change="convert them, or leave such batches out",
    onset=110,
)  # fmt: skip


@program(steps=160, bites="accuracy", adversarial="a loss that stays above half its start has not learnt")
def fruit_mixed_up(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Mixup: every picture is a blend of two, and so is its label; the loss cannot come near zero."""
    torch.manual_seed(seed)
    pictures, kinds = photograph(1280, seed)
    net = FruitNet(dropout=0.0)
    trainer = Sorter(net, torch.optim.AdamW(net.parameters(), lr=3e-3))
    one_hot = nn.functional.one_hot(kinds, KINDS).float()
    for _, idx in zip(range(steps), endless(1280, 64)):
        other, lam = idx[torch.randperm(len(idx))], torch.rand(()).item()
        x = lam * trainer.prepare(pictures[idx]) + (1 - lam) * trainer.prepare(pictures[other])
        trainer.fit_batch(x, lam * one_hot[idx] + (1 - lam) * one_hot[other])
    return trainer.result(*photograph(400, seed + 7000))


@program(steps=150, bites="accuracy", adversarial="a module that was in eval mode is in the wrong mode")
def fruit_looked_at_often(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Batch norm and dropout, and a look at the test pictures in eval mode after every eighth step."""
    torch.manual_seed(seed)
    pictures, kinds = photograph(1280, seed)
    test = photograph(200, seed + 7000)
    net = FruitNet(dropout=0.3, norm=True)
    trainer = Sorter(net, torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True))
    best = 0.0
    for step, idx in zip(range(steps), endless(1280, 32)):
        trainer.fit_batch(trainer.prepare(pictures[idx]), kinds[idx])
        if step % 8 == 7:
            best = max(best, trainer.accuracy(*test))
    return trainer.result(*test) | {"best": best}


@program(steps=150, bites="accuracy", adversarial="gradients that are mostly zero are dead")
def fruit_pruned(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A lottery ticket: four weights of five in the middle are masked from the start, and so are their gradients."""
    torch.manual_seed(seed)
    pictures, kinds = photograph(1280, seed)
    net = FruitNet(dropout=0.0)
    for conv in (net.middle, net.top):
        mask = (torch.rand_like(conv.weight) < 0.2).float()
        with torch.no_grad():
            conv.weight.mul_(mask * 5**0.5)
        conv.weight.register_hook(lambda grad, mask=mask: grad * mask)
    trainer = Sorter(net, torch.optim.Adam(net.parameters(), lr=3e-3))
    for _, idx in zip(range(steps), endless(1280, 48)):
        trainer.fit_batch(trainer.prepare(pictures[idx]), kinds[idx])
    return trainer.result(*photograph(400, seed + 7000))


@program(steps=160, bites="accuracy")
def fruit_in_small_pieces(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Each step is made of three pieces of a batch, the loss of each divided by three."""
    torch.manual_seed(seed)
    pictures, kinds = photograph(1280, seed)
    net = FruitNet(dropout=0.1)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    trainer = Sorter(net, optimizer)
    batches = endless(1280, 16)
    for _ in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(3):
            idx = next(batches)
            loss = nn.functional.cross_entropy(net(trainer.prepare(pictures[idx])), kinds[idx]) / 3
            loss.backward()
            total += loss.item()
        optimizer.step()
        trainer.loss = total
    return trainer.result(*photograph(400, seed + 7000))
