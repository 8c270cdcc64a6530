"""Small networks of every shape, that say where their values part: the same program is watched, and cut for the oracle.

`at(producer, value)` marks a value; `use(producer, consumer, value)` is one use of it. Consumers that add up branches
are called by their operation, `+Add`, with a number where there are several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Marks:
    """Does nothing, or keeps values and cuts the uses of one value by one consumer."""

    def __init__(self, cut: tuple[str, str, int] | None = None, *, keeps: bool = False) -> None:
        self._cut, self._keeps = cut, keeps
        self.values: dict[str, list[Tensor]] = defaultdict(list)
        self.uses: dict[tuple[str, str, int], None] = {}  # producer, consumer, which of the producer's values

    def at(self, producer: str, value: Tensor) -> Tensor:
        if self._keeps:
            value.retain_grad()
            self.values[producer].append(value)
        return value

    def use(self, producer: str, consumer: str, value: Tensor) -> Tensor:
        """Of the producer's newest value."""
        key = producer, consumer, len(self.values[producer]) - 1
        if self._keeps:
            self.uses[key] = None
        return value.detach() if self._cut == key else value


class Shape(nn.Module):
    marks: Marks = Marks()

    def loss(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def linear(*sizes: int) -> list[nn.Module]:
    return [nn.Linear(a, b) for a, b in pairwise(sizes)]


class Side(Shape):
    """A second branch that hardly counts."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.main, self.side, self.head = *linear(8, 16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = at("inp", self.inp(x))
        joined = self.main(use("inp", "main", h)) + 1e-4 * self.side(use("inp", "side", h))
        return self.head(torch.relu(joined)).square().mean()


class Residual(Shape):
    """Three blocks before normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h, name = at("inp", self.inp(x)), "inp"
        for place, (norm, block) in enumerate(zip(self.norms, self.blocks)):
            branch = block(norm(use(name, f"norms.{place}", h)))
            h = use(name, "+Add", h) + torch.tanh(branch)
            name = f"+Add {place}"
            h = at(name, h) if place < 2 else h
        return self.head(h).square().mean()


class Concatenation(Shape):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.left, self.right, self.head = *linear(8, 12, 6), nn.Linear(12, 10), nn.Linear(16, 4)

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = at("inp", self.inp(x))
        both = torch.cat([self.left(use("inp", "left", h)), torch.tanh(self.right(use("inp", "right", h)))], 1)
        return self.head(both).square().mean()


class Attention(Shape):
    """Queries, keys and values of one tensor, that also goes past."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = at("inp", self.inp(x.view(4, 8, 8)))
        q, k, v = (getattr(self, name)(use("inp", name, h)) for name in ("query", "key", "value"))
        mixed = torch.softmax(q @ k.transpose(1, 2) / 4, -1) @ v
        return self.head(use("inp", "+Add", h) + self.out(mixed)).square().mean()


class Chunks(Shape):
    """One tensor handed out in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.left, self.right, self.head = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        left, right = at("inp", self.inp(x)).chunk(2, 1)
        return self.head(self.left(use("inp", "left", left)) * self.right(use("inp", "right", right))).square().mean()


class Shared(Shape):
    """One module called twice, for two heads and for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.shared, self.first, self.second = *linear(8, 16, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = at("inp", self.inp(x))
        one = at("shared", self.shared(use("inp", "shared", h)))
        first = self.first(use("shared", "first", one)).square().mean() + one.sum() * 0  # a use without a gradient
        two = at("shared", self.shared(torch.tanh(use("inp", "shared", h)) * 0.3))
        return first + 3 * self.second(torch.relu(use("shared", "second", two))).square().mean()


class Recurrent(Shape):
    """A loop whose every step has a reading, and the last one another."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.cell, self.read, self.last = (
            nn.Linear(8, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 2),
            nn.Linear(16, 4),
        )

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = torch.tanh(self.inp(x))
        total = x.new_zeros(())
        for step in range(4):
            h = at("cell", self.cell(h if step == 0 else use("cell", "cell", h)))
            total = total + self.read(use("cell", "read", h)).square().mean()
        return total + 0.5 * self.last(use("cell", "last", h)).square().mean()


class Heads(Shape):
    """Three tasks; one loss is taken of the features themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.trunk, self.a, self.b = *linear(8, 16, 16), nn.Linear(16, 4), nn.Linear(16, 2)

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = at("trunk", torch.relu(self.trunk(self.inp(x))))
        a = functional.cross_entropy(self.a(use("trunk", "a", h)), x[:, :4].argmax(1))
        return a + 5 * self.b(use("trunk", "b", h)).square().mean() + 0.1 * use("trunk", "+Add", h).abs().mean()


class Dense(Shape):
    """Every layer feeds all later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(12, 6), nn.Linear(18, 4)])

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        a = at("layers.0", self.layers[0](x))
        b = at("layers.1", torch.tanh(self.layers[1](use("layers.0", "layers.1", a))))
        c = torch.tanh(self.layers[2](torch.cat([use("layers.0", "+Cat 0", a), use("layers.1", "+Cat 0", b)], 1)))
        joined = torch.cat([use("layers.0", "+Cat 1", a), use("layers.1", "+Cat 1", b), c], 1)
        return self.layers[3](joined).square().mean()


class Skip(Shape):
    """Convolutions down and up again, with a way across."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.up = nn.Conv2d(1, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(8, 1, 3, 1, 1)
        self.norm = nn.BatchNorm2d(4)

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = at("norm", torch.relu_(self.norm(self.down(x.view(4, 1, 8, 8)))))
        deep = functional.interpolate(self.deep(use("norm", "deep", h)), scale_factor=2)
        return self.up(torch.cat([use("norm", "+Cat", h), deep], 1)).square().mean()


class Gate(Shape):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.gate, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = at("inp", self.inp(x))
        return self.head(use("inp", "+Mul", h) * torch.sigmoid(self.gate(use("inp", "gate", h)))).square().mean()


class Experts(Shape):
    """A router and four experts of which each row takes its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.router, self.head = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = at("inp", self.inp(x))
        weights = torch.softmax(self.router(use("inp", "router", h)), -1)
        outputs = [torch.relu(one(use("inp", f"experts.{n}", h))) for n, one in enumerate(self.experts)]
        return self.head((torch.stack(outputs, 1) * weights.unsqueeze(-1)).sum(1)).square().mean()


class Memory(Shape):
    """A recurrent module of torch, with a way past it."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.memory, self.head = nn.Linear(8, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 4)

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = at("inp", self.inp(x.view(4, 8, 8)))
        return self.head(self.memory(use("inp", "memory", h))[0] + 2 * use("inp", "+Add", h)).square().mean()


class Checkpointed(Shape):
    """What is between is computed once more in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.main, self.side, self.head = *linear(8, 16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = at("inp", self.inp(x))
        main = checkpoint(lambda one: torch.tanh(self.main(one)), use("inp", "main", h), use_reentrant=False)
        return self.head(main + self.side(use("inp", "side", h))).square().mean()


class Against(Shape):
    """Two branches that work against each other: one has a negative share."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.plus, self.minus = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.minus.load_state_dict(self.plus.state_dict())

    def loss(self, x: Tensor) -> Tensor:
        at, use = self.marks.at, self.marks.use
        h = at("inp", self.inp(x))
        return (self.plus(use("inp", "plus", h)) - 0.6 * self.minus(use("inp", "minus", h))).square().mean()


SHAPES: list[Callable[[], Shape]] = [
    Side, Residual, Concatenation, Attention, Chunks, Shared, Recurrent, Heads, Dense, Skip, Gate, Experts, Memory,
    Checkpointed, Against,
]  # fmt: skip
