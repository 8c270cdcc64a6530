"""The C kernel: all tensors in one call, one read of memory, without the interpreter lock."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels import _native  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.sparse import is_sparse, measure_mixed
from undertow.measure.kernels.tensors import FORMATS, addresses_of, plain
from undertow.measure.packed import Packed
from undertow.measure.partials import EXPONENT_BUCKETS, Moment, Partials, offsets_alone, offsets_of

if not hasattr(_native, "ReferredTensors"):
    raise ImportError("the C kernel was built from older sources")

ReferredTensors: Any = _native.ReferredTensors
_moments: Any = getattr(_native, "moments", None)
FINDS_ON_DEVICES: bool = hasattr(_native, "ON_DEVICES")

_NOTHING = np.zeros(0)
_MOMENTS, _EXPONENTS, _SKETCH, _ALL = len(Moment), int(Want.EXPONENTS), int(Want.SKETCH), int(Want.ALL)
_WORTH_THREADS = 1 << 20  # elements; fewer are read by the calling thread, whatever is allowed


class PlainTensors:
    """A list of tensors that the kernel reads where they lie, again and again: as few calls as possible."""

    __slots__ = ("_are_many", "_read", "any_nonfinite", "is_unchanged", "mark", "offsets")
    has_fingerprints = True

    def __init__(self, tensors: list[torch.Tensor], of: list[ref[torch.Tensor]], of_gradients: bool) -> None:
        """`tensors` are those of the list `of`, or their gradients. They are not kept: what is gone cannot be read."""
        counts, formats = _describe(tensors)
        dtypes = [tensor.dtype for tensor in tensors]
        self.offsets = offsets_of(counts)
        native = ReferredTensors(of, dtypes, torch.strided, of_gradients, counts, formats, self.offsets)
        # Addresses, versions, fingerprints and identities of the tensors, as bytes; None when one cannot be read so.
        self.mark: Callable[[], bytes | None] = native.mark
        # Whether they are as they were at a mark or a reading.
        self.is_unchanged: Callable[[bytes], bool] = native.is_unchanged
        # Whether any of their elements is; None when one cannot be read so.
        self.any_nonfinite: Callable[[], bool | None] = native.any_nonfinite
        self._read = native.read
        self._are_many = int(counts.sum()) >= _WORTH_THREADS

    def read(self, want: int = _ALL) -> Packed | None:
        """None when one of them cannot be read where it lies now. `want`: as a plain number, which is quicker."""
        data = self._read(want, torch.get_num_threads() if self._are_many else 1)
        return None if data is None else Packed(data, want, self.offsets)

    def read_and_mark(self) -> tuple[Packed, bytes] | None:
        """Everything, and what it takes to notice a change."""
        packed = self.read()
        return None if packed is None else (packed, packed.data)


class NativeKernel:
    name = "native"

    def measure(self, tensors: Sequence[torch.Tensor], want: Want = Want.ALL, threads: int | None = None) -> Partials:
        """`threads` is an upper limit, torch's own by default; small work stays on the calling thread."""
        if want == Want.MOMENTS and len(tensors) == 1:
            alone = _moments_alone(tensors[0], threads)
            if alone is not None:
                return alone
        if not _readable(tensors):
            if any(map(is_sparse, tensors)):
                return measure_mixed(lambda some, wanted: self.measure(some, wanted, threads), tensors, want)
            tensors = _copied(tensors)
        counts, formats = _describe(tensors)
        number, offsets, flags = len(counts), offsets_of(counts), int(want)
        moments = np.empty((number, _MOMENTS))
        exponents = np.empty((number, EXPONENT_BUCKETS), np.int64) if flags & _EXPONENTS else None
        sketches = np.empty(offsets[-1]) if flags & _SKETCH else None
        if not flags & 1:
            moments.fill(np.nan)
            moments[:, Moment.COUNT] = counts
        _native.measure(
            addresses_of(tensors),
            counts,
            formats,
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
        (address,) = addresses_of([tensor]).tolist()
        _native.unit_activity(address, tensor.element_size(), outer, len(active), inner, active)
        return active

    def fingerprint(self, tensors: Sequence[torch.Tensor]) -> NDArray[np.float64] | None:
        if not _readable(tensors):
            tensors = _copied([t.detach().coalesce().values() if is_sparse(t) else t for t in tensors])
        counts, formats = _describe(tensors)
        out = np.empty(len(counts))
        _native.fingerprint(addresses_of(tensors), counts, formats, out)
        return out

    def plain(
        self, tensors: list[torch.Tensor], of: list[ref[torch.Tensor]], of_gradients: bool
    ) -> PlainTensors | None:
        """For lists that are read at every step; None when the kernel cannot read these where they lie."""
        return PlainTensors(tensors, of, of_gradients) if _readable(tensors) else None


def _moments_alone(tensor: torch.Tensor, threads: int | None) -> Partials | None:
    """As of a list, in a fifth of the time: modules put out one tensor each."""
    dtype, count = tensor.dtype, tensor.numel()
    if _moments is None or dtype not in FORMATS:
        return None
    if count < _WORTH_THREADS:
        threads = 1
    elif threads is None:
        threads = torch.get_num_threads()
    found = _moments(tensor, dtype, torch.strided, FORMATS[dtype], threads)
    return None if found is None else Partials(np.frombuffer(found).reshape(1, -1), None, None, offsets_alone(count))


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


def _describe(tensors: Sequence[torch.Tensor]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """How many elements each has, in which format."""
    counts = np.array([tensor.numel() for tensor in tensors], np.int64)
    return counts, np.array([FORMATS[tensor.dtype] for tensor in tensors], np.uint8)
