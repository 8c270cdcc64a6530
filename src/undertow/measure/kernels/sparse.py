"""Sparse gradients (`nn.Embedding(sparse=True)`) measured as if dense, without building the dense tensor."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.tensors import array_of, plain
from undertow.measure.partials import EXPONENT_BUCKETS, SKETCH_BUCKETS, Moment, Partials, offsets_of
from undertow.measure.signs import signs

Measure = Callable[[Sequence[torch.Tensor], Want], Partials]


def is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.sparse_coo


def measure_mixed(measure: Measure, tensors: Sequence[torch.Tensor], want: Want) -> Partials:
    """Measure a list in which some tensors are sparse; `measure` does the dense ones and the stored values."""
    sparse = {i: _measure_sparse(measure, tensor, want) for i, tensor in enumerate(tensors) if is_sparse(tensor)}
    rest = measure([tensor for i, tensor in enumerate(tensors) if i not in sparse], want)
    order: list[tuple[Partials, int]] = []
    for i in range(len(tensors)):
        order.append((sparse[i], 0) if i in sparse else (rest, sum(part is rest for part, _ in order)))
    moments = np.stack([part.moments[row] for part, row in order])
    counts = moments[:, Moment.COUNT].astype(np.int64)
    exponents = sketches = None
    if want & Want.EXPONENTS:
        exponents = np.stack([part.exponents[row] for part, row in order if part.exponents is not None])
    if want & Want.SKETCH:
        sketches = np.concatenate(
            [
                part.sketches[part.offsets[row] : part.offsets[row + 1]]
                for part, row in order
                if part.sketches is not None
            ]
        )
    return Partials(moments, exponents, sketches, offsets_of(counts))


def _measure_sparse(measure: Measure, tensor: torch.Tensor, want: Want) -> Partials:
    together = tensor.detach().coalesce()  # a new tensor when the user's has duplicates
    values = plain(together.values())
    count = tensor.numel() * (2 if tensor.is_complex() else 1)
    stored = measure([values], want & ~Want.SKETCH | Want.MOMENTS)
    whole = stored.merge(_zeros(count - values.numel()))
    sketches = _sketch(together, values, count) if want & Want.SKETCH else None
    return Partials(whole.moments, whole.exponents, sketches, offsets_of(np.array([count])))


def _zeros(count: int) -> Partials:
    """The partial values of `count` zeros."""
    moments = np.zeros((1, len(Moment)))
    moments[0, [Moment.COUNT, Moment.ZERO]] = count
    moments[0, [Moment.MINIMUM, Moment.MAXIMUM]] = 0.0 if count else np.nan
    exponents = np.zeros((1, EXPONENT_BUCKETS), np.int64)
    exponents[0, 0] = count
    return Partials(moments, exponents, None, np.zeros(2, np.int64))


def _sketch(together: torch.Tensor, values: torch.Tensor, count: int) -> NDArray[np.float64]:
    """Every stored value finds its place in the flattened dense tensor, and with it its bucket and sign."""
    buckets = np.zeros(min(SKETCH_BUCKETS, count))
    numbers = array_of(values.reshape(-1).to("cpu", torch.float64))
    if numbers.size:
        places = array_of(together.indices().cpu())
        inner = values[0].numel()
        rows = np.asarray(np.ravel_multi_index(tuple(places), together.shape[: together.sparse_dim()]))
        index = (rows[:, None] * inner + np.arange(inner)).ravel()
        np.add.at(buckets, index % len(buckets), signs(index) * np.where(np.isfinite(numbers), numbers, 0.0))
    return buckets
