"""The Triton kernel: all tensors of a list on a GPU in one launch per number format, and one small launch after.

Nothing here waits for the device. Results are copied to pinned memory beside the training's own work, and
`ArrivingPartials.to_host` waits for that copy, on another thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray

from undertow.errors import write_stderr
from undertow.measure.kernels import triton_fast, triton_merge, triton_parts
from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.sparse import is_sparse, measure_mixed
from undertow.measure.kernels.tensors import FORMATS, FreedMemoryError, plain
from undertow.measure.kernels.torch_portable import DevicePartials, TorchKernel
from undertow.measure.kernels.triton_chunks import (
    MERGED_COLUMNS,
    TALL_MERGED_COLUMNS,
    AddressTables,
    Chunks,
    chunks_of,
)
from undertow.measure.kernels.triton_parts import PartChunks, part_chunks
from undertow.measure.partials import EXPONENT_BUCKETS, SKETCH_BUCKETS, Moment, Partials
from undertow.measure.shards import Places


@dataclass(frozen=True, slots=True)
class _Format:
    """How tensors of a format are read: 16 bytes at once by each thread."""

    kind: tl.dtype
    bytes: int
    lanes: int
    warps: int


# Registers of a thread, and how many programs run beside each other on a processor with so many: counting exponents
# takes so much work that data are better asked for in advance, for which there must be room.
_COUNTING, _NOT_COUNTING = (112, 2), (80, 3)

_READING = {
    torch.float32: _Format(tl.float32, 4, lanes=4, warps=8),
    torch.bfloat16: _Format(tl.uint16, 2, lanes=4, warps=8),
    torch.float16: _Format(tl.float16, 2, lanes=4, warps=8),
    torch.float64: _Format(tl.float64, 8, lanes=4, warps=8),
}


@dataclass(frozen=True, slots=True)
class ArrivingPartials:
    """Partial values on their way to pinned memory."""

    arriving: DevicePartials
    arrived: torch.cuda.Event

    @property
    def want(self) -> Want:
        return self.arriving.want

    def to_host(self) -> Partials:
        """Waits for the device, asleep."""
        self.arrived.synchronize()
        return self.arriving.to_host()


class TritonKernel:
    name = "triton"

    def __init__(self) -> None:
        self._addresses = AddressTables()
        self._copying: dict[torch.device, torch.cuda.Stream] = {}
        self._portable = TorchKernel()
        self.broken = False
        self._parts_broken = False  # of no consequence to the rest

    def measure(self, tensors: Sequence[torch.Tensor], want: Want = Want.ALL) -> Partials:
        if any(map(is_sparse, tensors)):
            return measure_mixed(self.measure, tensors, want)
        return self.measure_on_device(tensors, want).to_host()

    @torch.no_grad()
    def measure_on_device(
        self, tensors: Sequence[torch.Tensor], want: Want = Want.ALL
    ) -> ArrivingPartials | DevicePartials:
        """All tensors must be on one device."""
        if self.broken or not tensors:
            return self._portable.measure_on_device(tensors, want)
        flat = [tensor if _readable(tensor) else plain(tensor) for tensor in tensors]
        device = flat[0].device
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                return self._arriving(self._launch(flat, want, device))
        except FreedMemoryError:
            raise
        except Exception as error:
            self.broken = True
            _say(error, "measuring with plain torch operations instead, which is slower")
        return self._portable.measure_on_device(tensors, want)

    @torch.no_grad()
    def sketch_parts_on_device(
        self, tensors: Sequence[torch.Tensor], parts: Sequence[Places]
    ) -> ArrivingPartials | DevicePartials | None:
        """The sketches of parts of tensors, which add up to those of the whole; None where that cannot be done."""
        if self.broken or self._parts_broken or not tensors:
            return None
        flat = [tensor if _readable(tensor) else plain(tensor) for tensor in tensors]
        device = flat[0].device
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                return self._arriving(self._launch_parts(flat, parts, device))
        except FreedMemoryError:
            raise
        except Exception as error:
            self._parts_broken = True
            _say(error, "updates and directions of shards are not measured")
        return None

    def unit_activity(self, tensor: torch.Tensor, unit_dim: int) -> NDArray[np.uint8]:
        return self._portable.unit_activity(tensor, unit_dim)

    def fingerprint(self, tensors: Sequence[torch.Tensor]) -> NDArray[np.float64] | None:
        return None

    def _launch(self, flat: list[torch.Tensor], want: Want, device: torch.device) -> DevicePartials:
        counts = tuple([tensor.numel() for tensor in flat])
        registers, programs = _COUNTING if want & Want.EXPONENTS else _NOT_COUNTING
        chunks = chunks_of(counts, tuple([tensor.dtype for tensor in flat]), device, programs)
        # Launched with a grid and options that its signature does not show.
        measure_chunks: Any = triton_fast.measure_chunks
        wanted = {
            "MOMENTS": bool(want & Want.MOMENTS),
            "EXPONENTS": bool(want & Want.EXPONENTS),
            "SKETCH": bool(want & Want.SKETCH),
        }
        scratch = _scratch(chunks, wanted, device)
        # Machine code is NVIDIA's; the interpreter wants few operations.
        ptx, width = (torch.version.cuda is not None, 256) if device.type == "cuda" else (False, 1024)
        addresses = self._addresses.table(flat, device)
        for dtype, records in chunks.records:
            reading = _READING[dtype]
            measure_chunks[(len(records),)](
                addresses, records, *scratch, chunks.number,
                FORMAT=reading.kind, BYTES=reading.bytes, LANES=reading.lanes, WIDTH=width, PTX=ptx, **wanted,
                num_warps=reading.warps, maxnreg=registers, enable_fp_fusion=False,
            )  # fmt: skip
        widths = (len(Moment), EXPONENT_BUCKETS, SKETCH_BUCKETS)
        width = sum(width for width, asked in zip(widths, wanted.values()) if asked)
        block = torch.empty(len(flat) * width, dtype=torch.float64, device=device)
        _merge(chunks, scratch, block, len(flat), wanted)
        return DevicePartials(block, counts, want)

    def _launch_parts(self, flat: list[torch.Tensor], parts: Sequence[Places], device: torch.device) -> DevicePartials:
        chunks = part_chunks(tuple(parts), tuple([tensor.dtype for tensor in flat]), device)
        sketch_chunks: Any = triton_parts.sketch_part_chunks
        wanted = {"MOMENTS": False, "EXPONENTS": False, "SKETCH": True}
        scratch = _scratch(chunks, wanted, device)
        addresses = self._addresses.table(flat, device)
        for dtype, order in chunks.orders:
            reading = _READING[dtype]
            sketch_chunks[(len(order),)](
                addresses, chunks.tensor_of, chunks.row_of, chunks.rows_of, chunks.places, order, scratch[2],
                FORMAT=reading.kind, LANES=reading.lanes, num_warps=reading.warps,
            )  # fmt: skip
        block = torch.empty(len(flat) * SKETCH_BUCKETS, dtype=torch.float64, device=device)
        _merge(chunks, scratch, block, len(flat), wanted)
        return DevicePartials(block, tuple(part.count for part in parts), Want.SKETCH)

    def _arriving(self, partials: DevicePartials) -> ArrivingPartials | DevicePartials:
        block = partials.block
        if block.device.type == "cpu" or torch.cuda.is_current_stream_capturing():
            return partials
        stream = self._copying.get(block.device)
        if stream is None:
            stream = self._copying[block.device] = torch.cuda.Stream(block.device)
        stream.wait_stream(torch.cuda.current_stream(block.device))
        with torch.cuda.stream(stream):
            copy = torch.empty(block.shape, dtype=block.dtype, pin_memory=True)
            copy.copy_(block, non_blocking=True)
            arrived = torch.cuda.Event(blocking=True)
            arrived.record(stream)
        block.record_stream(stream)
        return ArrivingPartials(DevicePartials(copy, partials.counts, partials.want), arrived)


def _say(error: Exception, consequence: str) -> None:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    write_stderr(f"undertow: the Triton kernel does not work here ({reason}); {consequence}")


def _readable(tensor: torch.Tensor) -> bool:
    """Whether the programs can read it where it lies. Asked for every tensor of every step: kept short."""
    return (
        tensor.dtype in FORMATS
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and tensor.device.type != "meta"
        and not tensor.is_neg()
    )


def _merge(
    chunks: Chunks | PartChunks,
    scratch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    block: torch.Tensor,
    tensors: int,
    wanted: dict[str, bool],
) -> None:
    merge_chunks: Any = triton_merge.merge_chunks
    merge_chunks[(len(chunks.merges),)](
        chunks.first_of, chunks.merges, *scratch, block, tensors, chunks.number,
        COLUMNS=MERGED_COLUMNS, HEIGHT=4, TALL_COLUMNS=TALL_MERGED_COLUMNS, TALL_HEIGHT=128, **wanted,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def _scratch(
    chunks: Chunks | PartChunks, wanted: dict[str, bool], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For the moments, exponents and sketches of every chunk."""
    widths = (len(Moment), EXPONENT_BUCKETS, SKETCH_BUCKETS)
    kinds = (torch.float64, torch.int32, torch.float64)
    moments, exponents, sketches = (
        torch.empty(chunks.number * width if asked else 0, dtype=kind, device=device)
        for width, kind, asked in zip(widths, kinds, wanted.values())
    )
    return moments, exponents, sketches
