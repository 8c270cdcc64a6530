"""Where non-finite values begin, looked for once, at the moment a loss turns non-finite: its graph still shows it."""

import math
from typing import Any

import torch

from undertow.probe.forward import ModuleReading
from undertow.probe.reader import TensorReader
from undertow.probe.readings import Number
from undertow.probe.subjects import Subjects


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
    spoilt = subjects.first_nonfinite_weight(reader)
    if spoilt is not None or not may_unpack:
        return spoilt
    origin = subjects.first_nonfinite(roots)
    module = _first_bad_module(subjects, modules)
    owning = {owner.path for owners in subjects.layers.owners.values() for owner in owners}
    if module is None or (origin is not None and origin["layer"] and module in owning):
        return origin
    # A module without parameters has no place in the graph of the loss.
    return {"where": "forward", "operation": "", "detail": "", **(origin or {}), "layer": module}


def _first_bad_module(subjects: Subjects, modules: dict[int, ModuleReading]) -> str | None:
    """The innermost module whose output was the first that is not finite, when this step's were looked at."""
    table = subjects.layers
    bad = [
        (reading.position, -table.depth(layer), table.layer_path(layer))
        for layer, reading in modules.items()
        if reading.position is not None and reading.has_nonfinite_output()
    ]
    return min(bad)[2] if bad else None
