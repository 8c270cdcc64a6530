"""Rows of weights: do they differ from each other, and which rows of an embedding are ever used?"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import Optimizer

from undertow.measure.kernels.tensors import array_of, is_freed

_ROWS = 64
_ELEMENTS = 1 << 14
_COLUMNS = 4  # of an embedding's rows, enough to see whether a row is zero
MOST_ROWS = 1 << 14  # of an embedding that is read in every step


@np.errstate(all="ignore")  # weights that are not finite, or whose squares are not: NaN
def row_spread(weight: torch.Tensor) -> float:
    """Norm of the rows minus their mean row, over the norm of the rows; from at most 64 evenly spaced rows;
    NaN where there is none."""
    if weight.dim() < 2 or weight.shape[0] < 2 or weight.device.type != "cpu" or weight.layout is not torch.strided:
        return math.nan
    if is_freed(weight) or weight.is_complex():
        return math.nan
    rows = weight.detach()[:: -(-weight.shape[0] // _ROWS)].flatten(1)
    if rows.numel() > _ELEMENTS:
        rows = rows[:, :: -(-rows.numel() // _ELEMENTS)]
    values = array_of(rows.double())
    difference = values - values[0]  # equal rows then give exactly 0
    # Not `np.vdot`: that would wake the threads of the linear algebra library, beside those that train.
    length = math.sqrt(float(np.square(values).sum()))
    difference -= difference.mean(axis=0)
    return math.sqrt(float(np.square(difference).sum())) / length if 0 < length < math.inf else math.nan


class RowBook:
    """Which rows of each embedding have had a gradient so far."""

    def __init__(self, layer_of: Callable[[int], int | None]) -> None:
        """`layer_of`: the layer of a parameter, by the id of its tensor."""
        self._layer_of = layer_of
        self._used: dict[tuple[int | None, int], NDArray[np.bool_]] = {}  # by layer and number of rows

    def _rows(self, weight: torch.Tensor) -> NDArray[np.bool_]:
        return self._used.setdefault((self._layer_of(id(weight)), len(weight)), np.zeros(len(weight), np.bool_))

    def note_gradient(self, weight: torch.Tensor) -> None:
        gradient = weight.grad
        if gradient is None or gradient.device.type != "cpu" or is_freed(gradient):
            return
        touched = array_of(gradient._indices()[0]) if gradient.is_sparse else _touched(gradient)
        self._rows(weight)[touched] = True

    def note_state(self, optimizer: Optimizer, weight: torch.Tensor) -> None:
        """What the optimizer keeps remembers every step, so that it need not be asked in each."""
        kept = memory_of(optimizer, weight)
        if kept is not None:
            self._rows(weight)[_touched(kept)] = True

    def unused(self, weight: torch.Tensor) -> float:
        """Share of its rows; NaN where nothing was noted."""
        used = self._used.get((self._layer_of(id(weight)), len(weight)))
        return math.nan if used is None else 1.0 - float(used.mean())


def memory_of(optimizer: Optimizer, weight: torch.Tensor) -> torch.Tensor | None:
    """State that is zero in just the rows that never had a gradient; weight decay inside the gradient spoils it."""
    group = next((one for one in optimizer.param_groups if any(p is weight for p in one["params"])), None)
    state: Mapping[str, Any] = optimizer.state.get(weight, {})
    if group is None:
        return None
    decoupled = "AdamW" in type(optimizer).__name__ or group.get("decoupled_weight_decay")
    if group.get("weight_decay") and not decoupled:
        return None
    for name in ("exp_avg_sq", "square_avg", "sum", "momentum_buffer"):
        kept = state.get(name)
        if isinstance(kept, torch.Tensor) and kept.shape == weight.shape and kept.device.type == "cpu":
            return None if is_freed(kept) else kept
    return None


def _touched(values: torch.Tensor) -> NDArray[np.bool_]:
    columns = values.detach().flatten(1)
    some = columns[:, :: max(1, columns.shape[1] // _COLUMNS)][:, :_COLUMNS]
    return (some != 0).any(dim=1).numpy()
