"""Reads lists of tensors through the kernel of their device, and notices cheaply whether tensors have changed.

The same lists are read at every step, so what does not change between steps (sizes, formats) is kept with the list,
and the rest is a few calls for all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels import choose
from undertow.measure.kernels.interface import MARKS, Kernel, Want
from undertow.measure.kernels.tensors import FreedMemoryError, is_freed
from undertow.measure.partials import Moment
from undertow.probe.cuda_events import Events, record_events
from undertow.probe.readings import Number, RawFrame, Reading, Slots
from undertow.probe.tensor_list import TensorList

_NONFINITE = slice(Moment.NAN, Moment.NEGATIVE_INFINITY + 1)


@dataclass(slots=True)
class Marks:
    """What identified each tensor of a list and its content.

    In one go where the native kernel can (a mark of `PlainTensors`, or a reading, which begins with one), else memory,
    version, and a few elements.
    """

    of: TensorList
    native: bytes | None = None
    identity: list[tuple[int, int]] | None = None
    content: NDArray[np.float64] | None = None

    def chosen(self, of: TensorList) -> Marks | None:
        """The part that concerns another list; None when that has tensors this one lacks."""
        place = {slot: index for index, slot in enumerate(self.of.slots.tolist())}
        found = [place.get(slot, -1) for slot in of.slots.tolist()]
        if -1 in found:
            return None
        native = identity = content = None
        if self.native is not None:
            native = np.frombuffer(self.native, np.uint64, MARKS * len(place)).reshape(MARKS, -1)[:, found].tobytes()
        if self.identity is not None:
            identity = [self.identity[index] for index in found]
        if self.content is not None:
            content = self.content[found]
        return Marks(of, native, identity, content)


class TensorReader:
    def __init__(self) -> None:
        self._kernels: dict[str, Kernel] = {}
        self._cuda: set[torch.device] = set()

    def kernel_for(self, device_type: str) -> Kernel:
        kernel = self._kernels.get(device_type)
        if kernel is None:
            kernel = self._kernels[device_type] = choose(device_type)
        return kernel

    def read(self, of: TensorList, want: Want = Want.ALL, factor: Number = 1.0) -> list[Reading]:
        """One reading per device; none where one of these tensors is gone or has got another size."""
        plain = of.plain if of.asked else self._ask(of)
        packed = None if plain is None else plain.read(int(want))
        if packed is not None:
            return [Reading(of.slots, packed, factor)]
        tensors = of.complete()
        return [] if tensors is None else self._read_slowly(of, tensors, want, factor)

    def read_and_mark(self, of: TensorList, factor: Number = 1.0) -> tuple[list[Reading], Marks] | None:
        """A whole reading, and what it takes to notice later that any of these tensors has changed; None where one of
        these tensors is gone or has got another size.
        """
        plain = of.plain if of.asked else self._ask(of)
        found = None if plain is None else plain.read_and_mark()
        if found is not None:
            return [Reading(of.slots, found[0], factor)], Marks(of, found[1])
        tensors = of.complete()
        if tensors is None:
            return None
        return self._read_slowly(of, tensors, Want.ALL, factor), self._marks(of, tensors)

    def _read_slowly(self, of: TensorList, found: list[torch.Tensor], want: Want, factor: Number) -> list[Reading]:
        with torch.no_grad():
            tensors = [tensor.detach() for tensor in found]
            slots = of.slots
            if of.some_are_empty:
                there = [place for place, tensor in enumerate(tensors) if tensor.numel()]
                slots, tensors = slots[there], [tensors[place] for place in there]
            try:
                readings = self._read_by_device(slots, tensors, want, factor)
            except FreedMemoryError:
                there = [place for place, tensor in enumerate(tensors) if not is_freed(tensor)]
                readings = self._read_by_device(slots[there], [tensors[place] for place in there], want, factor)
            return of.placed(readings, found, self.kernel_for)

    def _read_by_device(self, slots: Slots, tensors: list[torch.Tensor], want: Want, factor: Number) -> list[Reading]:
        readings: list[Reading] = []
        devices = {tensor.device for tensor in tensors}
        for device in sorted(devices, key=str):
            chosen, mine = slots, tensors
            if len(devices) > 1:
                places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
                chosen, mine = slots[places], [tensors[place] for place in places]
            if device.type == "cuda":
                self._cuda.add(device)
            kernel = self.kernel_for(device.type)
            on_device = getattr(kernel, "measure_on_device", None)
            measure = kernel.measure if device.type == "cpu" or on_device is None else on_device
            readings.append(Reading(chosen, measure(mine, want), factor))
        return readings

    def _ask(self, of: TensorList) -> Any:
        """How the kernel of their device can read these tensors where they lie; None when it cannot."""
        of.asked = True
        tensors = of.complete()
        if tensors and not of.some_are_empty:
            device = tensors[0].device
            plain_of = getattr(self.kernel_for(device.type), "plain", None)
            of.plain = None if plain_of is None else plain_of(tensors, of.references, of.of_gradients)
            if of.plain is not None and device.type == "cuda":
                self._cuda.add(device)
        return of.plain

    def _native_mark(self, of: TensorList) -> bytes | None:
        """None when the native kernel cannot read these tensors where they lie now."""
        plain = of.plain if of.asked else self._ask(of)
        return None if plain is None else plain.mark()

    def events(self) -> Events:
        """When what has been read so far will be there."""
        return record_events(self._cuda) if self._cuda else ()

    def read_these(self, tensors: Sequence[tuple[int, torch.Tensor]]) -> list[Reading]:
        """Of tensors that stand for slots, such as gradients that are in no parameter's `grad`."""
        with torch.no_grad():
            slots = np.array([slot for slot, _ in tensors], np.int64)
            return self._read_by_device(slots, [tensor.detach() for _, tensor in tensors], Want.ALL, 1.0)

    # -- has it changed? ----------------------------------------------------------------------------------

    def unchanged(self, marks: Marks | None, of: TensorList) -> bool:
        """False when any tensor is another one or may have been edited.

        A version counter alone is not enough: edits through `.data` and the unscaling of a loss scaler do not
        touch it. So a few elements of every tensor are compared as well, where the kernel can.
        """
        if marks is not None and marks.of is not of:
            marks = marks.chosen(of)
        if marks is None:
            return False
        plain = of.plain if of.asked else self._ask(of)
        if marks.native is not None:
            return plain is not None and plain.is_unchanged(marks.native)
        if plain is not None and plain.mark() is not None:
            return False
        now = self._marks(of, of.tensors())
        if now.identity != marks.identity:
            return False
        return marks.content is None or now.content is None or bool((now.content == marks.content).all())

    def mark(self, of: TensorList) -> Marks | None:
        """None where one of these tensors is gone."""
        native = self._native_mark(of)
        if native is not None:
            return Marks(of, native)
        tensors = of.complete()
        return None if tensors is None else self._marks(of, tensors)

    def changed(self, marks: Marks) -> NDArray[np.bool_]:
        """Which tensors are not what they were when marked, by the order of their list; none where one is gone."""
        before, now = marks, self.mark(marks.of)
        count = len(marks.of.slots)
        if now is None:
            return np.zeros(count, np.bool_)
        if before.native is not None and now.native is not None:
            rows = [
                np.frombuffer(one.native or b"", np.uint64, MARKS * count).reshape(MARKS, -1) for one in (before, now)
            ]
            return (rows[0][:3] != rows[1][:3]).any(axis=0)
        if before.identity is None or now.identity is None:  # they can be read in another way than before
            return np.ones(count, np.bool_)
        changed = np.array([one != other for one, other in zip(before.identity, now.identity)], np.bool_)
        if before.content is not None and now.content is not None:
            changed |= before.content != now.content
        return changed

    def _marks(self, of: TensorList, tensors: Sequence[torch.Tensor]) -> Marks:
        return Marks(of, None, _identity(tensors), self._contents(tensors))

    def _contents(self, tensors: Sequence[torch.Tensor]) -> NDArray[np.float64] | None:
        if not len(tensors) or any(tensor.device.type != "cpu" for tensor in tensors):
            return None
        try:
            return self.kernel_for("cpu").fingerprint(tensors)
        except FreedMemoryError:
            return None

    def any_nonfinite(self, of: TensorList) -> bool:
        """False also where reading would make the training wait."""
        plain = of.plain if of.asked else self._ask(of)
        answer = None if plain is None else plain.any_nonfinite()
        if answer is not None:
            return answer
        if any(not parameter.is_cpu for parameter in of.parameters):
            return False
        readings = self._read_slowly(of, of.tensors(), Want.MOMENTS, 1.0)
        return any(one.partials.moments[:, _NONFINITE].any() for one in readings)

    def are_zero(self, of: TensorList) -> NDArray[np.bool_] | None:
        """Whether some elements of each are all zero; None where reading them would make the training wait."""
        plain = of.plain if of.asked else self._ask(of)
        if plain is not None and not plain.has_fingerprints:
            return None
        native = None if plain is None else plain.mark()
        if native is not None:
            return np.frombuffer(native, np.float64).reshape(MARKS, -1)[2] == 0.0
        tensors = of.tensors()
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return None
        contents = self._contents(tensors)
        if contents is not None:
            return contents == 0.0
        with torch.no_grad():
            return np.array([is_freed(tensor) or not bool(_few(tensor).any()) for tensor in tensors], np.bool_)


def _identity(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    return [(t.data_ptr() if t.layout is torch.strided else id(t), t._version) for t in tensors]


def _few(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor.coalesce().values() if tensor.is_sparse else tensor
    flat = values.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // 32)]


_FROZEN_EVERY = 64  # frames between two readings of weights that cannot move


class WeightWatch:
    """Weights right before and right after an optimizer moves them.

    What was measured after one step is what lies before the next, unless somebody has edited the weights in between.
    """

    def __init__(self, reader: TensorReader) -> None:
        self._reader = reader
        self._frames = 0
        self._measured_after = -2  # the step after which weights were last measured
        self._marks: Marks | None = None
        self._before: Sequence[Reading] = ()
        self._before_is_previous = False

    def forget(self) -> None:
        self._marks = None

    def before(self, weights: TensorList, previous_step: int) -> None:
        """`weights` are those that can move."""
        is_known = self._measured_after == previous_step and self._reader.unchanged(self._marks, weights)
        self._before_is_previous = is_known
        self._before = () if is_known else self._reader.read(weights, Want.MOMENTS | Want.SKETCH)

    def after(self, frame: RawFrame, weights: TensorList, moving: TensorList) -> None:
        """`weights` are all that the frame speaks of, `moving` those of them that can move."""
        chosen = weights if self._frames % _FROZEN_EVERY == 0 else moving
        read = self._reader.read_and_mark(chosen)
        if read is not None:  # weights are always there
            frame.weights, self._marks = read
        frame.weights_before = self._before
        frame.before_is_previous = self._before_is_previous
        self._measured_after = frame.step
        self._frames += 1
