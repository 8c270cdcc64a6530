"""A program that trains something of other people's, and what such programs are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

STEPS = 8

Train = Callable[[], object]  # returns what it has trained, and whatever else must come out the same


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    needs: tuple[str, ...]  # modules that it imports
    train: Train
    steps: int  # what a watch has to have seen of it, lest nothing be compared
    prepare: Callable[[], object] | None = None  # further imports, once for all its trainings


@dataclass
class Group:
    """The programs of one file. They share a process that has imported their packages, and fork from it."""

    name: str
    needs: tuple[str, ...] = ()
    programs: list[Program] = field(default_factory=list)

    def add(
        self, name: str, train: Train, *needs: str, steps: int = STEPS, prepare: Callable[[], object] | None = None
    ) -> None:
        self.programs.append(Program(f"{self.name}/{name}", (*self.needs, *needs), train, steps, prepare))

    def program(self, *needs: str, name: str = "", steps: int = STEPS) -> Callable[[Train], Train]:
        """A function as a program, under its own name or another one."""

        def register(train: Train) -> Train:
            self.add(name or train.__name__.strip("_").replace("_", "-"), train, *needs, steps=steps)
            return train

        return register


def fit(
    model: nn.Module, loss: Callable[[], Tensor], optimizer: Optimizer | None = None, steps: int = STEPS
) -> tuple[object, ...]:
    """The plain loop. Batches are drawn inside it: a stream of numbers that was disturbed shows in everything."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.detach().clone())
    print("loss", *(f"{float(value):.6g}" for value in losses))
    return model, optimizer, losses


def learn(model: nn.Module, *shapes: tuple[int, ...], optimizer: Optimizer | None = None, **inputs: Any) -> object:
    """Train a model on noise of these shapes; inputs by name are made anew at every step."""

    def loss() -> Tensor:
        return mean_square(model(*(torch.randn(shape) for shape in shapes), **{k: f() for k, f in inputs.items()}))

    return fit(model.train(), loss, optimizer)


def tokens(*shape: int, below: int = 64) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, below, shape)


def noise(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape)


def mean_square(output: object) -> Tensor:
    """A loss for whatever a model returns: of every tensor in it through which a gradient can go."""
    values: list[Tensor] = [value for value in _tensors(output) if value.requires_grad]
    return torch.stack([_real(value).square().mean() for value in values]).sum()


def _real(value: Tensor) -> Tensor:
    return (torch.view_as_real(value) if value.is_complex() else value).float()


def _tensors(output: object) -> Iterator[Tensor]:
    if isinstance(output, dict) or hasattr(output, "to_tuple"):  # of transformers or diffusers
        output = list(output.values())  # pyright: ignore
    yield from (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
