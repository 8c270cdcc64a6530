"""A training loop that keeps its own book: what the gradients, weights and updates really were, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from undertow.probe.mailbox import Item
from undertow.probe.readings import RawFrame
from undertow.watch import Watch


def exact(tensor: torch.Tensor) -> np.ndarray:
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    return dense.double().numpy().copy()


def listen_in(w: Watch, found: list[RawFrame]) -> None:
    """Note what is posted, however it is posted."""
    recorder = w._recorder
    post = recorder._post

    def listen(item: Item) -> float:
        if isinstance(item, RawFrame):
            found.append(item)
        return post(item)

    recorder._post = listen


@dataclass
class Book:
    """One entry per optimizer step, by parameter name."""

    gradients: list[dict[str, np.ndarray]] = field(default_factory=list)
    before: list[dict[str, np.ndarray]] = field(default_factory=list)
    after: list[dict[str, np.ndarray]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def note_gradients(self, named: Iterable[tuple[str, torch.Tensor]], factor: float = 1.0) -> None:
        self.gradients.append({name: exact(p.grad) * factor for name, p in named if p.grad is not None})

    def note_before(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.before.append({name: exact(p) for name, p in named})

    def note_after(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.after.append({name: exact(p) for name, p in named})

    def norms(self, name: str) -> np.ndarray:
        return np.array([np.linalg.norm(g[name]) if name in g else np.nan for g in self.gradients])

    def update_ratios(self, name: str) -> np.ndarray:
        return np.array(
            [np.linalg.norm(a[name] - b[name]) / np.linalg.norm(b[name]) for a, b in zip(self.after, self.before)]
        )

    def cosines(self, name: str) -> np.ndarray:
        out = [np.nan]
        for old, new in zip(self.gradients, self.gradients[1:]):
            a, b = old[name].ravel(), new[name].ravel()
            out.append(float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b))))
        return np.array(out)


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers.append(activation())
    return nn.Sequential(*layers)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    inputs: Callable[[int], torch.Tensor],
    loss_of: Callable[[torch.Tensor, int], torch.Tensor],
    book: Book | None = None,
    between: Callable[[int], None] | None = None,
) -> Book:
    """The plainest of loops, writing down the truth as it goes. `between` runs after backward, before the step."""
    book = book or Book()
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(inputs(step)), step)
        loss.backward()
        book.losses.append(float(loss.detach()))
        book.note_gradients(model.named_parameters())
        if between is not None:
            between(step)
        book.note_before(model.named_parameters())
        optimizer.step()
        book.note_after(model.named_parameters())
    return book


def batches(features: int, size: int = 16, seed: int = 0) -> Callable[[int], torch.Tensor]:
    def batch(step: int) -> torch.Tensor:
        return torch.randn(size, features, generator=torch.Generator().manual_seed(seed * 1000 + step))

    return batch


def classes(count: int, size: int = 16) -> Callable[[torch.Tensor, int], torch.Tensor]:
    def loss_of(output: torch.Tensor, step: int) -> torch.Tensor:
        labels = torch.randint(0, count, (size,), generator=torch.Generator().manual_seed(77 + step))
        return nn.functional.cross_entropy(output.float(), labels)

    return loss_of
