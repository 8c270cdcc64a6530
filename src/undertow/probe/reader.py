"""Reads lists of tensors through the kernel of their device, and notices cheaply whether tensors have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels import choose
from undertow.measure.kernels.interface import Kernel, Want
from undertow.probe.readings import Number, Reading, Slots

EVERYTHING = Want.MOMENTS | Want.EXPONENTS | Want.SKETCH


@dataclass(slots=True)
class Marks:
    """What identified each tensor and its content: object, version, memory, and a few of its elements."""

    identity: dict[int, tuple[int, int, int]]
    content: dict[int, float] | None


class TensorReader:
    def __init__(self) -> None:
        self._kernels: dict[str, Kernel] = {}

    def kernel_for(self, device_type: str) -> Kernel:
        kernel = self._kernels.get(device_type)
        if kernel is None:
            kernel = self._kernels[device_type] = choose(device_type)
        return kernel

    def read(
        self, slots: Slots, tensors: Sequence[torch.Tensor], want: Want = EVERYTHING, factor: Number = 1.0
    ) -> list[Reading]:
        """One reading per device."""
        readings: list[Reading] = []
        devices = {tensor.device for tensor in tensors}
        for device in sorted(devices, key=str):
            if len(devices) == 1:
                chosen, mine = slots, tensors
            else:
                places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
                chosen, mine = slots[places], [tensors[place] for place in places]
            kernel = self.kernel_for(device.type)
            on_device = getattr(kernel, "measure_on_device", None)
            measure = kernel.measure if device.type == "cpu" or on_device is None else on_device
            readings.append(Reading(chosen, measure(mine, want), factor))
        return readings

    def marks(self, slots: Slots, tensors: Sequence[torch.Tensor]) -> Marks:
        identity = {
            slot: (id(tensor), tensor._version, _address(tensor)) for slot, tensor in zip(slots.tolist(), tensors)
        }
        contents = self.contents(tensors)
        return Marks(identity, None if contents is None else dict(zip(slots.tolist(), contents.tolist())))

    def unchanged(self, marks: Marks | None, slots: Slots, tensors: Sequence[torch.Tensor]) -> bool:
        """False when any tensor is another one or may have been edited.

        A version counter alone is not enough: edits through `.data` and the unscaling of a loss scaler do not
        touch it. So a few elements of every tensor are compared as well, where the kernel can.
        """
        if marks is None:
            return False
        for slot, tensor in zip(slots.tolist(), tensors):
            if marks.identity.get(slot) != (id(tensor), tensor._version, _address(tensor)):
                return False
        if marks.content is None:
            return True
        contents = self.contents(tensors)
        if contents is None:
            return True
        before = np.array([marks.content.get(slot, np.nan) for slot in slots.tolist()])
        return bool(np.array_equal(before, contents, equal_nan=True))

    def contents(self, tensors: Sequence[torch.Tensor]) -> NDArray[np.float64] | None:
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return None
        return self.kernel_for("cpu").fingerprint(tensors)

    def look_zero(self, tensors: Sequence[torch.Tensor]) -> NDArray[np.bool_] | None:
        """Whether the elements looked at are all zero; None where looking would make the training wait."""
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return None
        contents = self.contents(tensors)
        if contents is not None:
            return contents == 0.0
        return np.array([not bool(_few(tensor).any()) for tensor in tensors], np.bool_)


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if tensor.layout == torch.strided else 0


def _few(tensor: torch.Tensor) -> Any:
    values = tensor.coalesce().values() if tensor.is_sparse else tensor
    flat = values.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // 32)]
