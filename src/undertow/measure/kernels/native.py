"""The C kernel: all tensors in one call, one read of memory, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels import _native  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.sparse import is_sparse, measure_mixed
from undertow.measure.kernels.tensors import FORMATS, plain
from undertow.measure.partials import EXPONENT_BUCKETS, Moment, Partials, offsets_of

_NOTHING = np.zeros(0)
_MOMENTS, _EXPONENTS, _SKETCH = len(Moment), int(Want.EXPONENTS), int(Want.SKETCH)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes and formats of a list of tensors, and where their sketches begin."""

    counts: NDArray[np.int64]
    formats: NDArray[np.uint8]
    offsets: NDArray[np.int64]


class NativeKernel:
    name = "native"

    def measure(self, tensors: Sequence[torch.Tensor], want: Want = Want.ALL, threads: int | None = None) -> Partials:
        """`threads` is an upper limit, torch's own by default; small work stays on the calling thread."""
        if not _readable(tensors):
            if any(map(is_sparse, tensors)):
                return measure_mixed(lambda some, wanted: self.measure(some, wanted, threads), tensors, want)
            tensors = _copied(tensors)
        addresses, counts, formats = _describe(tensors)
        return self.measure_at(addresses, Shapes(counts, formats, offsets_of(counts)), want, threads)

    def measure_at(
        self, addresses: NDArray[np.uint64] | bytes, shapes: Shapes, want: Want = Want.ALL, threads: int | None = None
    ) -> Partials:
        """Measure memory that holds tensors of known shapes: for lists that are read again at every step."""
        number, offsets, flags = len(shapes.counts), shapes.offsets, int(want)  # flags of an enum are slow to test
        moments = np.empty((number, _MOMENTS))
        exponents = np.empty((number, EXPONENT_BUCKETS), np.int64) if flags & _EXPONENTS else None
        sketches = np.empty(offsets[-1]) if flags & _SKETCH else None
        if not flags & 1:
            moments.fill(np.nan)
            moments[:, Moment.COUNT] = shapes.counts
        _native.measure(
            addresses,
            shapes.counts,
            shapes.formats,
            flags,
            torch.get_num_threads() if threads is None else threads,
            moments,
            _NOTHING if exponents is None else exponents,
            _NOTHING if sketches is None else sketches,
            offsets,
        )
        return Partials(moments, exponents, sketches, offsets)

    def unit_activity(self, tensor: torch.Tensor, unit_dim: int) -> NDArray[np.uint8]:
        if not _readable([tensor]):
            (tensor,) = _copied([tensor])
        shape = tuple(tensor.shape)
        unit_dim %= len(shape)
        active = np.zeros(shape[unit_dim], np.uint8)
        outer, inner = prod(shape[:unit_dim]), prod(shape[unit_dim + 1 :])
        _native.unit_activity(tensor.data_ptr(), tensor.element_size(), outer, len(active), inner, active)
        return active

    def fingerprint(self, tensors: Sequence[torch.Tensor]) -> NDArray[np.float64] | None:
        if not _readable(tensors):
            tensors = _copied([t.detach().coalesce().values() if is_sparse(t) else t for t in tensors])
        addresses, counts, formats = _describe(tensors)
        return self.fingerprint_at(addresses, Shapes(counts, formats, offsets_of(counts)))

    def fingerprint_at(self, addresses: NDArray[np.uint64] | bytes, shapes: Shapes) -> NDArray[np.float64]:
        out = np.empty(len(shapes.counts))
        _native.fingerprint(addresses, shapes.counts, shapes.formats, out)
        return out

    def mark(
        self, tensors: list[torch.Tensor], dtypes: list[torch.dtype], shapes: Shapes, of_gradients: bool
    ) -> bytes | None:
        """Addresses, versions and fingerprints of the tensors, or of their gradients: three arrays end to end. None
        when one cannot be read where it lies. `measure_at` takes it for the addresses it begins with.
        """
        return _native.mark(tensors, dtypes, torch.strided, of_gradients, shapes.counts, shapes.formats)

    def shapes(self, tensors: Sequence[torch.Tensor]) -> Shapes | None:
        """What stays the same from step to step; None when the kernel cannot read these where they lie."""
        if not _readable(tensors):
            return None
        _, counts, formats = _describe(tensors)
        return Shapes(counts, formats, offsets_of(counts))


def _readable(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the kernel can read all of them where they lie. Asked for every tensor of every step: kept short."""
    strided = torch.strided
    for t in tensors:
        if not (t.is_cpu and t.layout is strided and t.is_contiguous()) or t.is_neg() or t.dtype not in FORMATS:
            return False
    return True


def _copied(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """In a form the kernel reads; tensors that already have it are not copied."""
    for tensor in tensors:
        if not tensor.is_cpu and tensor.device.type != "meta":
            raise TypeError(f"the native kernel reads CPU tensors; this one is on {tensor.device}")
    return [plain(tensor) for tensor in tensors]


def _describe(
    tensors: Sequence[torch.Tensor],
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint8]]:
    return (
        np.array([tensor.data_ptr() for tensor in tensors], np.uint64),
        np.array([tensor.numel() for tensor in tensors], np.int64),
        np.array([FORMATS[tensor.dtype] for tensor in tensors], np.uint8),
    )
