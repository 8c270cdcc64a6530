"""Lists of tensors on a device that are read at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
import torch

from undertow.measure.kernels.interface import MARKS, Want
from undertow.measure.kernels.tensors import FORMATS
from undertow.measure.kernels.torch_portable import DevicePartials
from undertow.measure.kernels.triton_chunks import Chunks, chunks_of
from undertow.measure.kernels.triton_formats import programs_for
from undertow.measure.partials import offsets_of

if TYPE_CHECKING:
    from undertow.measure.kernels.triton_kernel import ArrivingPartials, TritonKernel

ReferredTensors: Any
try:
    from undertow.measure.kernels.native import FINDS_ON_DEVICES, ReferredTensors
except ImportError:  # built without a C compiler
    FINDS_ON_DEVICES, ReferredTensors = False, None


class DeviceTensors:
    """A list of tensors on a device that is read again and again: a look at all of them is one native call, and where
    they lie is sent to the device only when that has changed. As `native.PlainTensors`, but without fingerprints."""

    __slots__ = ("_chunks", "_counts", "_device", "_formats", "_kernel", "is_unchanged", "mark")
    has_fingerprints = False

    def __init__(
        self, kernel: TritonKernel, tensors: list[torch.Tensor], of: list[ref[torch.Tensor]], of_gradients: bool
    ) -> None:
        self._kernel, self._device = kernel, tensors[0].device
        self._counts = tuple([tensor.numel() for tensor in tensors])
        self._formats = tuple([tensor.dtype for tensor in tensors])
        self._chunks: dict[int, Chunks] = {}
        counts = np.array(self._counts, np.int64)
        formats = np.array([FORMATS[one] for one in self._formats], np.uint8)
        index = -1 if self._device.type == "cpu" else self._device.index
        native = ReferredTensors(
            of, list(self._formats), torch.strided, of_gradients, counts, formats, offsets_of(counts), index
        )
        self.mark: Callable[[], bytes | None] = native.mark
        self.is_unchanged: Callable[[bytes], bool] = native.is_unchanged

    def any_nonfinite(self) -> None:
        """Nobody knows without waiting for the device."""

    def read(self, want: int = int(Want.ALL)) -> ArrivingPartials | DevicePartials | None:
        found = self.read_and_mark(want)
        return None if found is None else found[0]

    def read_and_mark(self, want: int = int(Want.ALL)) -> tuple[ArrivingPartials | DevicePartials, bytes] | None:
        """None when one of them cannot be read where it lies now."""
        kernel, device, mark = self._kernel, self._device, self.mark()
        if mark is None or kernel.broken:
            return None
        programs = programs_for(Want(want))
        try:
            chunks = self._chunks.get(programs)
            if chunks is None:
                chunks = self._chunks[programs] = chunks_of(self._counts, self._formats, device, programs)
            addresses = kernel.address_table(mark[: len(mark) // MARKS], device)
            return kernel.measure_located(addresses, chunks, self._counts, Want(want), device), mark
        except Exception as error:
            kernel.give_up(error)
        return None
