"""Reads lists of tensors through the kernel of their device, and notices cheaply whether tensors have changed.

The same lists are read at every step, so what does not change between steps (sizes, formats) is kept, and the
rest is a few calls for the whole list.
"""

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

_MOST_LISTS = 64


@dataclass(slots=True)
class _Known:
    """A list of tensors the native kernel reads where they lie."""

    slots: Slots  # kept, so that its id stays its own
    dtypes: list[torch.dtype]
    shapes: Any


@dataclass(slots=True)
class Place:
    """Where each tensor of a list lies and which version it is, as the native kernel saw it: arrays as bytes."""

    addresses: bytes
    versions: bytes

    def chosen(self, places: list[int]) -> Place:
        addresses, versions = np.frombuffer(self.addresses, np.uint64), np.frombuffer(self.versions, np.int64)
        return Place(addresses[places].tobytes(), versions[places].tobytes())


Identity = Place | list[tuple[int, int]]


@dataclass(slots=True)
class Marks:
    """What identified each tensor of a list and its content: memory, version, and a few of its elements."""

    slots: Slots
    identity: Identity
    content: NDArray[np.float64] | None


class TensorReader:
    """Slots name the tensors: equal slots must be the same array object for the short way to be taken."""

    def __init__(self) -> None:
        self._kernels: dict[str, Kernel] = {}
        self._lists: dict[int, _Known | None] = {}

    def kernel_for(self, device_type: str) -> Kernel:
        kernel = self._kernels.get(device_type)
        if kernel is None:
            kernel = self._kernels[device_type] = choose(device_type)
        return kernel

    def forget_lists(self) -> None:
        self._lists = {}

    def read(
        self, slots: Slots, tensors: Sequence[torch.Tensor], want: Want = Want.ALL, factor: Number = 1.0
    ) -> list[Reading]:
        """One reading per device."""
        return self.read_and_mark(slots, tensors, want, factor, mark=False)[0]

    def read_and_mark(
        self,
        slots: Slots,
        tensors: Sequence[torch.Tensor],
        want: Want = Want.ALL,
        factor: Number = 1.0,
        mark: bool = True,
    ) -> tuple[list[Reading], Marks | None]:
        """A reading, and what it takes to notice later that any of these tensors has changed."""
        known, place = self._place(slots, tensors)
        if known is not None and place is not None:
            kernel: Any = self.kernel_for("cpu")
            readings = [Reading(slots, kernel.measure_at(place.addresses, known.shapes, want), factor)]
            if not mark:
                return readings, None
            content = kernel.fingerprint_at(place.addresses, known.shapes)
            return readings, Marks(slots, place, content)
        with torch.no_grad():
            readings = self._read_slowly(slots, [tensor.detach() for tensor in tensors], want, factor)
        return readings, Marks(slots, _identity(tensors), self.contents(slots, tensors)) if mark else None

    def _read_slowly(self, slots: Slots, tensors: list[torch.Tensor], want: Want, factor: Number) -> list[Reading]:
        readings: list[Reading] = []
        devices = {tensor.device for tensor in tensors}
        for device in sorted(devices, key=str):
            chosen, mine = slots, tensors
            if len(devices) > 1:
                places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
                chosen, mine = slots[places], [tensors[place] for place in places]
            kernel = self.kernel_for(device.type)
            on_device = getattr(kernel, "measure_on_device", None)
            measure = kernel.measure if device.type == "cpu" or on_device is None else on_device
            readings.append(Reading(chosen, measure(mine, want), factor))
        return readings

    def _place(self, slots: Slots, tensors: Sequence[torch.Tensor]) -> tuple[_Known | None, Place | None]:
        """What is known of this list and where it lies now; None when the native kernel cannot read it there."""
        key = id(slots)
        if key not in self._lists:
            if len(self._lists) >= _MOST_LISTS:
                self._lists = {}
            shapes_of = getattr(self.kernel_for("cpu"), "shapes", None)
            shapes = None if shapes_of is None or not len(tensors) else shapes_of(tensors)
            self._lists[key] = None if shapes is None else _Known(slots, [t.dtype for t in tensors], shapes)
        known = self._lists[key]
        if known is None or known.slots is not slots or len(known.dtypes) != len(tensors):
            return None, None
        kernel: Any = self.kernel_for("cpu")
        found = kernel.look(tensors, known.dtypes)
        return (None, None) if found is None else (known, Place(*found))

    # -- has it changed? ----------------------------------------------------------------------------------

    def unchanged(self, marks: Marks | None, slots: Slots, tensors: Sequence[torch.Tensor]) -> bool:
        """False when any tensor is another one or may have been edited.

        A version counter alone is not enough: edits through `.data` and the unscaling of a loss scaler do not
        touch it. So a few elements of every tensor are compared as well, where the kernel can.
        """
        if marks is None:
            return False
        identity, content = marks.identity, marks.content
        if marks.slots is not slots:
            place = {slot: index for index, slot in enumerate(marks.slots.tolist())}
            chosen = [place.get(slot) for slot in slots.tolist()]
            if None in chosen:
                return False
            found = [index for index in chosen if index is not None]
            identity = identity.chosen(found) if isinstance(identity, Place) else [identity[i] for i in found]
            content = None if content is None else content[found]
        known, place = self._place(slots, tensors)
        if identity != (_identity(tensors) if place is None else place):
            return False
        if content is None:
            return True
        if known is not None and place is not None:
            kernel: Any = self.kernel_for("cpu")
            return bool((kernel.fingerprint_at(place.addresses, known.shapes) == content).all())
        now = self.contents(slots, tensors)
        return now is None or bool((now == content).all())

    def contents(self, slots: Slots, tensors: Sequence[torch.Tensor]) -> NDArray[np.float64] | None:
        known, place = self._place(slots, tensors)
        if known is not None and place is not None:
            kernel: Any = self.kernel_for("cpu")
            return kernel.fingerprint_at(place.addresses, known.shapes)
        if not len(tensors) or any(tensor.device.type != "cpu" for tensor in tensors):
            return None
        return self.kernel_for("cpu").fingerprint(tensors)

    def look_zero(self, slots: Slots, tensors: Sequence[torch.Tensor]) -> NDArray[np.bool_] | None:
        """Whether the elements looked at are all zero; None where looking would make the training wait."""
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return None
        contents = self.contents(slots, tensors)
        if contents is not None:
            return contents == 0.0
        with torch.no_grad():
            return np.array([not bool(_few(tensor).any()) for tensor in tensors], np.bool_)


def _identity(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    return [(t.data_ptr() if t.layout is torch.strided else id(t), t._version) for t in tensors]


def _few(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor.coalesce().values() if tensor.is_sparse else tensor
    flat = values.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // 32)]
