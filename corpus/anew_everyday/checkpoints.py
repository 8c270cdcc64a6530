"""What stands for a checkpoint from the disk: weights with the spectrum that trained ones have."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def trained_matrix(rows: int, columns: int, g: torch.Generator, gain: float = 1.3) -> Tensor:
    """Singular values that fall by a power law, in random directions."""
    u, _ = torch.linalg.qr(torch.randn(rows, rows, generator=g))
    v, _ = torch.linalg.qr(torch.randn(columns, columns, generator=g))
    rank = min(rows, columns)
    values = torch.arange(1.0, rank + 1) ** -0.35
    values = values * gain * (rows / values.square().sum()).sqrt()
    return u[:, :rank] @ (values[:, None] * v[:rank])


def load_checkpoint(model: nn.Module, number: int) -> nn.Module:
    """Put the weights of checkpoint `number` into every matrix of the model."""
    g = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(trained_matrix(*weight.shape, g))
            elif weight.ndim == 4:
                weight.copy_(trained_matrix(weight.shape[0], weight[0].numel(), g).view_as(weight))
            elif weight.ndim == 1:
                weight.add_(0.05 * torch.randn(weight.shape, generator=g))
    return model
