"""Values that are not finite: a check of a few gradients in every step, and a search for where they begin, once, at the
moment a loss turns non-finite: its graph still shows it."""

import math
from typing import Any

import torch

from undertow.measure.kernels.interface import Want
from undertow.measure.partials import Moment
from undertow.probe.autograd_graph import first_nonfinite
from undertow.probe.forward import ModuleReading
from undertow.probe.reader import TensorReader
from undertow.probe.readings import NO_SLOTS, Number
from undertow.probe.subjects import Subjects
from undertow.probe.tensor_list import TensorList

_GLANCE = 65_536  # elements of the largest tensor that is checked in every step;
_QUICK = 4_096  # smaller ones are preferred
_NONFINITE = [Moment.NAN, Moment.POSITIVE_INFINITY, Moment.NEGATIVE_INFINITY]


class Sentinels:
    """A few small tensors to glance at in every step: those executed first, and some spread over the rest.

    What goes wrong in a backward pass spreads towards the input, so the first layers tell of all behind them.
    """

    def __init__(self, subjects: Subjects, reader: TensorReader) -> None:
        self._subjects, self._reader = subjects, reader
        self._chosen_for: tuple[object, object] = (None, None)  # the slots and the order of layers
        self._slots = NO_SLOTS
        self._glanced: TensorList | None = None  # their gradients, where all have one

    def forget(self) -> None:
        self._chosen_for, self._glanced = (None, None), None

    def went_bad(self) -> bool:
        """False also where looking would make the training wait."""
        lists, layers = self._subjects.lists, self._subjects.layers
        if self._chosen_for[0] is not layers.layout or self._chosen_for[1] is not layers.sequence:
            self._chosen_for, self._glanced = (layers.layout, layers.sequence), None
            self._slots = lists.one(self._chosen())
        if self._glanced is not None:
            bad = self._glanced.plain.any_nonfinite()
            if bad is not None:  # all have a gradient, as last time
                return bad
        chosen, self._glanced = lists.gradients(lists.with_gradient(self._slots)), None
        bad = bool(len(chosen.slots)) and self._reader.any_nonfinite(chosen)
        if chosen.plain is not None and chosen.slots is self._slots:
            self._glanced = chosen
        return bad

    def _chosen(self) -> list[int]:
        layers = self._subjects.layers
        sizes = [0 if (tensor := one()) is None else tensor.numel() for one in layers.references]
        small = [slot for slot, size in enumerate(sizes) if 0 < size <= _GLANCE]
        small.sort(key=layers.place)
        tiny = [slot for slot in small if sizes[slot] <= _QUICK] or small
        return sorted({*small[:4], *tiny[:: max(1, len(tiny) // 4)]})


def is_nonfinite(loss: Number) -> bool:
    """False also where looking would make the training wait."""
    return not isinstance(loss, torch.Tensor) and not math.isfinite(loss)


def find_origin(
    subjects: Subjects,
    reader: TensorReader,
    roots: tuple[Any, ...],
    modules: dict[int, ModuleReading],
    may_unpack: bool,
) -> dict[str, Any] | None:
    """For the journal. `modules` are this step's readings by layer id; `may_unpack` is False where looking at saved
    tensors could run the user's code again.
    """
    spoilt = _first_nonfinite_weight(subjects, reader)
    if spoilt is not None or not may_unpack:
        return spoilt
    origin = _first_nonfinite(subjects, roots)
    module = _first_bad_module(subjects, modules)
    owning = {owner.path for owners in subjects.layers.owners.values() for owner in owners}
    if module is None or (origin is not None and origin["layer"] and module in owning):
        return origin
    # A module without parameters has no place in the graph of the loss.
    return {"where": "forward", "operation": "", "detail": "", **(origin or {}), "layer": module}


def _first_bad_module(subjects: Subjects, modules: dict[int, ModuleReading]) -> str | None:
    """The innermost module whose output was the first that is not finite, where this step's were sampled."""
    table = subjects.layers
    bad = [
        (reading.position, -table.depth(layer), table.layer_path(layer))
        for layer, reading in modules.items()
        if reading.position is not None and reading.has_nonfinite_output()
    ]
    return min(bad)[2] if bad else None


def _first_nonfinite(subjects: Subjects, roots: tuple[Any, ...]) -> dict[str, Any] | None:
    """Where in the forward pass of this loss they begin."""
    origin = first_nonfinite(roots, subjects.layers.owners, subjects.stands_for())
    if origin is None:
        return None
    return {"where": "forward", "layer": origin.path, "operation": origin.operation, "detail": origin.detail}


def _first_nonfinite_weight(subjects: Subjects, reader: TensorReader) -> dict[str, Any] | None:
    """The first weight in execution order that is no longer finite."""
    layers, lists = subjects.layers, subjects.lists
    if any(tensor.device.type != "cpu" for tensor in layers.tensors()):
        return None  # looking would make the training wait
    bad: dict[int, tuple[int, int]] = {}
    for reading in reader.read(lists.weights(lists.one(range(len(layers.references)))), Want.MOMENTS):
        moments = reading.partials.moments
        counts = zip(reading.slots.tolist(), moments[:, _NONFINITE].sum(axis=1), moments[:, Moment.COUNT])
        bad |= {slot: (int(count), int(size)) for slot, count, size in counts if count}
    if not bad:
        return None
    slot = min(bad, key=layers.place)
    detail = f"{bad[slot][0]} of {bad[slot][1]} values are not finite"
    return {"where": "weight", "layer": layers.path(slot), "operation": "", "detail": detail}
