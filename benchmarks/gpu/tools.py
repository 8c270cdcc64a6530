"""What can be attached to a training in the GPU benchmark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import undertow


class Plain:
    name = "plain"
    light = True  # cheap enough for full blocks
    settles = 0.0  # seconds, and
    warm_up = 3  # steps that are not timed

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        pass

    def detach(self) -> None:
        pass

    def after_backward(self, loss: torch.Tensor) -> None:
        pass

    def after_step(self, loss: torch.Tensor) -> None:
        pass


class Watched(Plain):
    warm_up, settles = 18, 4.0  # it looks more closely at the first sixteen, and then starts the process that writes

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self._options = options
        self._watch: Any = None

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self._watch = undertow.watch(model, optimizer, run_dir=folder / "run", quiet=True, **self._options)

    def detach(self) -> None:
        self._watch.close()
        status = self._watch.run.status
        if status != "finished":
            raise RuntimeError(f"the run ended as {status}: {self._watch.run.facts.message}")


class Loop(Plain):
    """One torch operation per statistic and tensor, for gradients and weights; read at the end of the step."""

    name = "loop of torch reductions per tensor"
    light = False

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self._parameters = list(model.parameters())

    def after_backward(self, loss: torch.Tensor) -> None:
        self._look([p.grad for p in self._parameters if p.grad is not None])

    def after_step(self, loss: torch.Tensor) -> None:
        self._look([p.detach() for p in self._parameters])

    def _look(self, tensors: list[torch.Tensor]) -> None:
        statistics: list[Callable[[torch.Tensor], torch.Tensor]] = [
            torch.linalg.vector_norm, torch.mean, torch.std, torch.amin, torch.amax,
            lambda x: (x == 0).sum(), lambda x: (~torch.isfinite(x)).sum(),
        ]  # fmt: skip
        torch.stack([f(x).float() for x in tensors for f in statistics]).cpu()


class Histograms(Plain):
    """The reductions of `wandb.watch(log="all", log_freq=1)`: extremes and 64 bins, read tensor by tensor."""

    name = "equivalent of wandb.watch's reductions"
    light = False

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self._parameters = list(model.parameters())

    def after_backward(self, loss: torch.Tensor) -> None:
        self._look([p.grad for p in self._parameters if p.grad is not None])

    def after_step(self, loss: torch.Tensor) -> None:
        self._look([p.detach() for p in self._parameters])

    def _look(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            flat = tensor.float().reshape(-1)
            if not bool(torch.isfinite(flat).all()):
                flat = flat[torch.isfinite(flat)]
            low, high = flat.min().item(), flat.max().item()
            torch.histc(flat, bins=64, min=low, max=high).cpu()


TOOLS: dict[str, Any] = {
    "plain": Plain(),
    "every": Watched("Undertow, every step, gradients and weights", every=1, activations=False),
    "default": Watched("Undertow, defaults, with activations"),
    "loop": Loop(),
    "histograms": Histograms(),
}
