"""A home-made trainer with callbacks, for the language models of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Callback = Callable[["Trainer"], None]


class Trainer:
    """Steps a model through batches; subclasses say what the loss of a batch is."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
        clip: float = 0.0,
        callbacks: Iterable[Callback] = (),
    ) -> None:
        self.model, self.optimizer, self.schedule, self.clip = model, optimizer, schedule, clip
        self.callbacks = list(callbacks)
        self.step = 0
        self.history: list[float] = []

    def loss_of(self, batch: Tensor) -> Tensor:
        raise NotImplementedError

    def fit(self, batches: Iterable[Tensor]) -> None:
        self.model.train()
        for batch in batches:
            loss = self.loss_of(batch)
            self.optimizer.zero_grad()
            loss.backward()
            if self.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
            self.history.append(loss.item())
            self.step += 1
            for callback in self.callbacks:
                callback(self)
