"""The Triton kernel: all tensors of a list on a GPU in one launch per number format, and one small launch after.

Nothing here waits for the device. Results are copied to pinned memory beside the training's own work, and
`ArrivingPartials.to_host` waits for that copy, on another thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.errors import write_stderr
from undertow.measure.kernels import triton_fast, triton_merge, triton_parts
from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.sparse import is_sparse, measure_mixed
from undertow.measure.kernels.tensors import FORMATS, FreedMemoryError, addresses_of, plain
from undertow.measure.kernels.torch_portable import DevicePartials, TorchKernel
from undertow.measure.kernels.triton_chunks import AddressTables, Chunks, chunks_of
from undertow.measure.kernels.triton_formats import (
    COUNTING,
    MERGE_CONSTANTS,
    NOT_COUNTING,
    READING,
    programs_for,
    wanted,
)
from undertow.measure.kernels.triton_launch import Program
from undertow.measure.kernels.triton_lists import FINDS_ON_DEVICES, DeviceTensors
from undertow.measure.kernels.triton_outputs import OutputMoments, OutputTable, can_launch, current_stream
from undertow.measure.kernels.triton_parts import PartChunks, part_chunks
from undertow.measure.partials import EXPONENT_BUCKETS, SKETCH_BUCKETS, Moment, Partials
from undertow.measure.shards import Places

_MOST_TABLES = 8  # of outputs: trainings have one stream or a few
Scratch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


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
        self._programs: dict[tuple[torch.dtype | None, Want, bool], Program] = {}
        self._outputs: dict[tuple[int, int], OutputTable] = {}  # by the numbers of device and stream
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
        counts, formats = tuple([tensor.numel() for tensor in flat]), tuple([tensor.dtype for tensor in flat])
        device = flat[0].device
        try:
            addresses = self._addresses.table(addresses_of(flat).tobytes(), device)
            chunks = chunks_of(counts, formats, device, programs_for(want))
            return self.measure_located(addresses, chunks, counts, want, device)
        except FreedMemoryError:
            raise
        except Exception as error:
            self.give_up(error)
        return self._portable.measure_on_device(tensors, want)

    def measure_located(
        self, addresses: torch.Tensor, chunks: Chunks, counts: tuple[int, ...], want: Want, device: torch.device
    ) -> ArrivingPartials | DevicePartials:
        """Of tensors of which the device knows where they lie."""
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return self._arriving(self._launch(addresses, chunks, counts, want, device))

    def measure_output(self, tensor: torch.Tensor) -> OutputMoments | ArrivingPartials | DevicePartials:
        """The moments of a tensor without history that comes alone, but not the only one of its step: `send_outputs`
        ends that."""
        if not self.broken and _readable(tensor):
            try:
                index = tensor.get_device()
                table = self._table(tensor, index) if can_launch(index) else None
                found = None if table is None else table.add(tensor)
                if found is not None:
                    return found
            except Exception as error:
                self.give_up(error)
        return self.measure_on_device([tensor], Want.MOMENTS)

    def _table(self, tensor: torch.Tensor, index: int) -> OutputTable | None:
        place = index, current_stream(index)
        table = self._outputs.get(place)
        if table is None and len(self._outputs) < _MOST_TABLES:
            table = self._outputs[place] = OutputTable(tensor.device, place[1])
        return table

    def send_outputs(self) -> None:
        """What `measure_output` has measured is on its way from now on."""
        for table in self._outputs.values():
            try:
                table.send()
            except Exception as error:
                self.give_up(error)

    def drop_outputs(self) -> None:
        """Nobody asks for what `measure_output` has measured."""
        for table in self._outputs.values():
            table.drop()

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

    def plain(
        self, tensors: list[torch.Tensor], of: list[ref[torch.Tensor]], of_gradients: bool
    ) -> DeviceTensors | None:
        """For lists that are read at every step; None when the programs cannot read these where they lie."""
        if self.broken or not FINDS_ON_DEVICES or len({tensor.device for tensor in tensors}) != 1:
            return None
        return DeviceTensors(self, tensors, of, of_gradients) if all(map(_readable, tensors)) else None

    def address_table(self, addresses: bytes, device: torch.device) -> torch.Tensor:
        return self._addresses.table(addresses, device)

    def give_up(self, error: Exception) -> None:
        self.broken = True
        _say(error, "measuring with plain torch operations instead, which is slower")

    def _launch(
        self, addresses: torch.Tensor, chunks: Chunks, counts: tuple[int, ...], want: Want, device: torch.device
    ) -> DevicePartials:
        chosen = wanted(want)
        scratch = _scratch(chunks, chosen, device)
        for dtype, records in chunks.records:
            program = self._program(dtype, want, device)
            program.launch(len(records), device, addresses, records, *scratch, chunks.number)
        widths = (len(Moment), EXPONENT_BUCKETS, SKETCH_BUCKETS)
        width = sum(width for width, asked in zip(widths, chosen.values()) if asked)
        block = torch.empty(len(counts) * width, dtype=torch.float64, device=device)
        self._merge(chunks, scratch, block, len(counts), want, device)
        return DevicePartials(block, counts, want)

    def _program(self, dtype: torch.dtype, want: Want, device: torch.device) -> Program:
        key = dtype, want, device.type == "cuda"
        program = self._programs.get(key)
        if program is None:
            # Machine code is NVIDIA's; the interpreter wants few operations.
            ptx, width = (torch.version.cuda is not None, 256) if device.type == "cuda" else (False, 1024)
            reading = READING[dtype]
            program = self._programs[key] = Program(
                triton_fast.measure_chunks,
                {
                    "FORMAT": reading.kind, "BYTES": reading.bytes, "LANES": reading.lanes, "WIDTH": width,
                    **wanted(want), "PTX": ptx,
                },
                num_warps=reading.warps, maxnreg=(COUNTING if want & Want.EXPONENTS else NOT_COUNTING)[0],
                enable_fp_fusion=False,
            )  # fmt: skip
        return program

    def _merge(
        self, chunks: Chunks | PartChunks, scratch: Scratch, block: torch.Tensor, tensors: int, want: Want,
        device: torch.device,
    ) -> None:  # fmt: skip
        key = None, want, device.type == "cuda"
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = Program(
                triton_merge.merge_chunks, {**MERGE_CONSTANTS, **wanted(want)}, num_warps=4, enable_fp_fusion=False
            )
        program.launch(
            len(chunks.merges), device, chunks.first_of, chunks.merges, *scratch, block, tensors, chunks.number
        )

    def _launch_parts(self, flat: list[torch.Tensor], parts: Sequence[Places], device: torch.device) -> DevicePartials:
        chunks = part_chunks(tuple(parts), tuple([tensor.dtype for tensor in flat]), device)
        sketch_chunks: Any = triton_parts.sketch_part_chunks
        scratch = _scratch(chunks, wanted(Want.SKETCH), device)
        addresses = self._addresses.table(addresses_of(flat).tobytes(), device)
        for dtype, order in chunks.orders:
            reading = READING[dtype]
            sketch_chunks[(len(order),)](
                addresses, chunks.tensor_of, chunks.row_of, chunks.rows_of, chunks.places, order, scratch[2],
                FORMAT=reading.kind, LANES=reading.lanes, num_warps=reading.warps,
            )  # fmt: skip
        block = torch.empty(len(flat) * SKETCH_BUCKETS, dtype=torch.float64, device=device)
        self._merge(chunks, scratch, block, len(flat), Want.SKETCH, device)
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
        and not tensor.is_meta
        and not tensor.is_neg()
    )


def _scratch(chunks: Chunks | PartChunks, chosen: dict[str, bool], device: torch.device) -> Scratch:
    """For the moments, exponents and sketches of every chunk."""
    widths = (len(Moment), EXPONENT_BUCKETS, SKETCH_BUCKETS)
    kinds = (torch.float64, torch.int32, torch.float64)
    moments, exponents, sketches = (
        torch.empty(chunks.number * width if asked else 0, dtype=kind, device=device)
        for width, kind, asked in zip(widths, kinds, chosen.values())
    )
    return moments, exponents, sketches
