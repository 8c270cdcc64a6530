"""Gradients that are a sum over ranks which nobody has taken yet: the terms travel, and the sum is measured."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels import choose
from undertow.measure.kernels.interface import Want
from undertow.measure.shards import sketch_of_part
from undertow.probe.distributed.messages import Measured
from undertow.probe.distributed.portions import Portion


def measure_sum(terms: Sequence[NDArray[Any]], block: Portion) -> Measured:
    """As if this block of the tensor had been measured after the sum. Small tensors only: see MOST_TERM_ELEMENTS."""
    total = torch.from_numpy(np.add.reduce([term.astype(np.float64) for term in terms]))
    partials = choose("cpu").measure([total], Want.MOMENTS | Want.EXPONENTS)
    length, starts = block.runs()
    sketch = sketch_of_part(total, length, starts, prod(block.shape))
    return Measured(np.zeros(1, np.int64), partials.moments, partials.exponents, sketch)
