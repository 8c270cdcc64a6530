"""The two trainings the GPU benchmark times: language models in bfloat16 autocast, compiled, with AdamW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from benchmarks.overhead.models import Block, LanguageModel

VOCABULARY, LENGTH = 50257, 1024


def _nothing(_: torch.Tensor) -> None:
    pass


@dataclass
class Training:
    name: str
    model: nn.Module
    compiled: Callable[[torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer
    batches: list[torch.Tensor]
    steps: int  # of a timed block
    taken: int = 0

    def step(
        self,
        after_backward: Callable[[torch.Tensor], None] = _nothing,
        after_step: Callable[[torch.Tensor], None] = _nothing,
    ) -> None:
        tokens = self.batches[self.taken % len(self.batches)]
        self.taken += 1
        with torch.autocast("cuda", torch.bfloat16):
            logits = self.compiled(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        after_backward(loss)
        self.optimizer.step()
        after_step(loss)


def small() -> Training:
    return _training("GPT-2 small, batch 16 × 1024", width=768, depth=12, heads=12, batch=16, steps=60)


def large() -> Training:
    return _training("1B parameters, batch 32 × 1024", width=2048, depth=18, heads=16, batch=32, steps=20)


def _training(name: str, width: int, depth: int, heads: int, batch: int, steps: int) -> Training:
    torch.manual_seed(0)
    model = LanguageModel(VOCABULARY, LENGTH, width, 0)
    model.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    model.head.weight = model.tokens.weight
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [torch.randint(VOCABULARY, (batch, LENGTH + 1), device="cuda") for _ in range(4)]
    compiled: Callable[[torch.Tensor], torch.Tensor] = torch.compile(model)
    return Training(name, model, compiled, optimizer, batches, steps)


def small_tensors() -> list[torch.Tensor]:
    """Gradients of GPT-2 small, as far as their sizes go."""
    width = 768
    shapes: list[tuple[int, ...]] = [(VOCABULARY, width), (LENGTH, width)]
    for _ in range(12):
        for matrix in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width)):
            shapes += [matrix, (matrix[0],)]
        shapes += [(width,)] * 4
    return [1e-3 * torch.randn(shape, device="cuda") for shape in [*shapes, (width,), (width,)]]
