"""Data sets that several cases share, beside those of `undertow.demos.data`."""

from __future__ import annotations

import torch
from torch import Tensor


def digits() -> tuple[Tensor, Tensor]:
    """The 1797 handwritten digits of scikit-learn, scaled to 0…1."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    return torch.tensor(pictures, dtype=torch.float32) / 16, torch.tensor(labels)
