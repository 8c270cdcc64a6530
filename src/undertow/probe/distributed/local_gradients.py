"""Each rank's own gradient, before data-parallel training averages it: how much they differ is noise.

Under `fully_shard` it is that of the whole parameter, which exists just then, and of which the average is scattered.
Hooks on the parameters, there only during a backward pass that is chosen for it; they change nothing.
"""

from typing import Any

import numpy as np
import torch

from undertow.measure.kernels.interface import Want
from undertow.probe.distributed.portions import is_spread
from undertow.probe.reader import TensorReader
from undertow.probe.readings import Number, Reading
from undertow.probe.subjects import Subjects
from undertow.probe.unseen import is_traced, unseen

_EVERY = 8  # measured backward passes; the choice must not depend on the clock


class LocalGradients:
    def __init__(self, subjects: Subjects, reader: TensorReader) -> None:
        self._subjects, self._reader = subjects, reader
        self._handles: list[Any] = []
        self._found: dict[int, Any] = {}
        self._passes = 0

    def begin(self) -> None:
        """Before the first backward pass of a step whose gradients are measured."""
        spread = self._subjects.layout.spread
        if spread is None or self._subjects.is_compiled:
            return
        self.stop()
        self._passes += 1
        if self._passes % _EVERY != 1:
            return
        references = self._subjects.layers.references
        for tensor, slot in [(references[slot](), slot) for slot in spread.wrapped] + self._subjects.gathered():
            # One that is spread is one of several parts of this gradient.
            if tensor is not None and tensor.requires_grad and not is_spread(tensor):
                self._handles.append(tensor.register_hook(self._hook(slot)))

    def end(self, factor: Number) -> list[Reading]:
        """After it: what the hooks have seen."""
        self.stop()
        found, self._found = self._found, {}
        return [Reading(np.array([slot]), partials, factor) for slot, partials in sorted(found.items())]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, slot: int) -> Any:
        def receive(gradient: torch.Tensor) -> None:
            try:
                if is_traced():
                    return
                with torch.no_grad(), unseen():
                    kernel: Any = self._reader.kernel_for(gradient.device.type)
                    on_device = getattr(kernel, "measure_on_device", None)
                    measure = kernel.measure if gradient.is_cpu or on_device is None else on_device
                    self._found[slot] = measure([gradient.detach()], Want.MOMENTS | Want.SKETCH)
            except Exception:  # the user's backward pass goes on; without this slot there is no noise to tell
                self._found.pop(slot, None)

        return receive
