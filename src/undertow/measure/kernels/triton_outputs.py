"""The moments of tensors that come one after the other, such as the outputs of modules: one launch for each, no memory
of its own, and one merge and one copy for all of a step.

The chunks and the sums are those that `triton_fast.measure_chunks` would take of the tensor alone: the same bits.
"""

# What follows is partly Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.triton_chunks import on_device, rows_alone
from undertow.measure.kernels.triton_fast import measure_chunk
from undertow.measure.kernels.triton_formats import MERGE_CONSTANTS, NOT_COUNTING, READING, wanted
from undertow.measure.kernels.triton_launch import Program
from undertow.measure.kernels.triton_merge import merge_chunks
from undertow.measure.partials import SKETCH_BUCKETS, Moment, Partials, offsets_alone

_MOST_CHUNKS, _MOST_OUTPUTS = 4096, 512  # of a page
_MOST_LENGTHS = 1024
_LONGEST = 1 << 31  # elements: whole numbers of 32 bits count them
_COLUMNS = len(Moment)


@triton.jit(do_not_specialize=["address", "count", "length", "first", "row", "number"])
def measure_output(
    address, count, length, first, row, first_of, moments, number,
    FORMAT: tl.constexpr, BYTES: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """A program measures one chunk of `length` elements, and the first one says where the chunks of the tensor lie."""
    chunk = tl.program_id(0)
    if chunk == 0:
        tl.store(first_of + row, first)
        tl.store(first_of + row + 1, first + tl.num_programs(0))
    start = chunk.to(tl.int64) * length
    measure_chunk(
        (first + chunk).to(tl.int64), start, tl.minimum(count - start, length).to(tl.int32), address + start * BYTES,
        moments, moments, moments, number, FORMAT, BYTES, LANES, WIDTH, MOMENTS, EXPONENTS, SKETCH, PTX,
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class Page:
    """Results that travel together."""

    rows: int = 0
    chunks: int = 0
    host: NDArray[np.float64] | None = None  # None also where it could not be sent
    arrived: torch.cuda.Event | None = None

    def moments(self, row: int) -> NDArray[np.float64]:
        """Waits for the device, asleep."""
        if self.arrived is not None:
            self.arrived.synchronize()
            self.arrived = None
        return np.full((1, _COLUMNS), np.nan) if self.host is None else self.host[row : row + 1].copy()


@dataclass(frozen=True, slots=True)
class OutputMoments:
    page: Page
    row: int
    count: int

    @property
    def want(self) -> Want:
        return Want.MOMENTS

    def to_host(self) -> Partials:
        moments = self.page.moments(self.row)
        moments[:, Moment.COUNT] = self.count
        return Partials(moments, None, None, offsets_alone(self.count))


class OutputTable:
    """Of one stream of a device, so that pages are filled and sent in its order and their memory can be used again."""

    def __init__(self, device: torch.device, stream: int) -> None:
        """Inside that stream."""
        self._device, self._is_cuda, self._stream = device, device.type == "cuda", stream
        self._page: Page | None = None
        self._lengths: dict[int, int] = {}
        self._moments = torch.empty(_COLUMNS * _MOST_CHUNKS, dtype=torch.float64, device=device)
        self._first_of = torch.empty(_MOST_OUTPUTS + 1, dtype=torch.int32, device=device)
        self._block = torch.empty(_COLUMNS * _MOST_OUTPUTS, dtype=torch.float64, device=device)
        self._merges = on_device(np.arange(_MOST_OUTPUTS, dtype=np.int32) << 8 | 255, device)
        of_moments = wanted(Want.MOMENTS)
        ptx, width = (torch.version.cuda is not None, 256) if self._is_cuda else (False, 1024)
        self._measure = {
            dtype: Program(
                measure_output,
                {"FORMAT": one.kind, "BYTES": one.bytes, "LANES": one.lanes, "WIDTH": width, **of_moments, "PTX": ptx},
                num_warps=one.warps, maxnreg=NOT_COUNTING[0], enable_fp_fusion=False,
            )
            for dtype, one in READING.items()
        }  # fmt: skip
        self._merge = Program(merge_chunks, {**MERGE_CONSTANTS, **of_moments}, num_warps=4, enable_fp_fusion=False)

    def add(self, tensor: torch.Tensor) -> OutputMoments | None:
        """Of a tensor that programs can read where it lies; None when it cannot be one of this page's."""
        device, page, count = self._device, self._page, tensor.numel()
        if count >= _LONGEST or not count:
            return None
        length = self._lengths.get(count) or self._length(count)
        chunks = -(-count // length)
        if page is not None and (page.rows == _MOST_OUTPUTS or page.chunks + chunks > _MOST_CHUNKS):
            self.send()
            page = None
        if page is None:
            if chunks > _MOST_CHUNKS:
                return None
            page = self._page = Page()
        row, first = page.rows, page.chunks
        self._measure[tensor.dtype].launch(
            chunks, device, tensor.data_ptr(), count, length, first, row, self._first_of, self._moments, _MOST_CHUNKS
        )
        page.rows, page.chunks = row + 1, first + chunks
        return OutputMoments(page, row, count)

    def send(self) -> None:
        """What has been added so far is on its way; without a word to the device where nothing has."""
        page, self._page = self._page, None
        if page is None:
            return
        if not self._is_cuda:
            self._merge_rows(page.rows)
            page.host = self._block[: page.rows * _COLUMNS].numpy().reshape(-1, _COLUMNS).copy()
            return
        index = self._device.index
        if torch._C._cuda_getDevice() == index and current_stream(index) == self._stream:
            self._send_rows(page)
        else:
            number, device = self._stream, self._device
            stream = torch.cuda.ExternalStream(number, device) if number else torch.cuda.default_stream(device)
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                self._send_rows(page)

    def _send_rows(self, page: Page) -> None:
        """On the training's stream, where the next page comes after: there is little to copy."""
        if torch.cuda.is_current_stream_capturing():
            return
        self._merge_rows(page.rows)
        copy = torch.empty(page.rows * _COLUMNS, dtype=torch.float64, pin_memory=True)
        copy.copy_(self._block[: page.rows * _COLUMNS], non_blocking=True)
        page.arrived = torch.cuda.Event(blocking=True)
        page.arrived.record()
        page.host = copy.numpy().reshape(-1, _COLUMNS)

    def drop(self) -> None:
        """Nobody wants what has been added."""
        self._page = None

    def _merge_rows(self, rows: int) -> None:
        self._merge.launch(
            rows, self._device, self._first_of, self._merges, self._moments, self._moments, self._moments, self._block,
            rows, _MOST_CHUNKS,
        )  # fmt: skip

    def _length(self, count: int) -> int:
        if len(self._lengths) >= _MOST_LENGTHS:
            self._lengths.clear()
        length = self._lengths[count] = rows_alone(count, self._device, NOT_COUNTING[1]) * SKETCH_BUCKETS
        return length


def current_stream(device: int) -> int:
    """By its number; of a negative device, which is the processor, always the same."""
    return torch._C._cuda_getCurrentRawStream(device) if device >= 0 else 0


def can_launch(device: int) -> bool:
    """Programs are launched on the current device; what a graph that is being captured holds is not known before it is
    replayed."""
    return device < 0 or (torch._C._cuda_getDevice() == device and not torch.cuda.is_current_stream_capturing())
