"""Where two runs part: the first step at which a gradient differs, and in which layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.run import Run
from undertow.views.rows import reading_order

QUANTITY = "gradient_norm"
TOLERANCE = 1e-6  # of the larger number: sums of floats in another order differ by about as much
_STEPS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Parting:
    common_steps: int
    common_layers: int
    step: int | None = None  # None: they agree wherever both were measured
    layers: tuple[str, ...] = ()  # those that differ at that step, as executed
    reason: str = ""  # why nothing could be compared


def parting(first: Run, second: Run, tolerance: float = TOLERANCE) -> Parting:
    """Compares gradient norms of layers of the same name, at steps that both runs recorded."""
    layers = first.layers.parameters
    ordered = [layers[place] for place in reading_order(layers)]
    pairs = [(layer, other) for layer in ordered if (other := second.layers.get(layer.path)) is not None]
    steps, in_first, in_second = np.intersect1d(first.steps, second.steps, return_indices=True)
    if QUANTITY not in first.quantities or QUANTITY not in second.quantities:
        return Parting(len(steps), len(pairs), reason="one of them has no gradients")
    if not len(steps) or not pairs:
        what = "step" if pairs else "layer"
        return Parting(len(steps), len(pairs), reason=f"they have no {what} in common")
    ids = [layer.id for layer, _ in pairs], [other.id for _, other in pairs]
    for start in range(0, len(steps), _STEPS_AT_ONCE):
        chunk = slice(start, start + _STEPS_AT_ONCE)
        one = _norms(first, ids[0], in_first[chunk])
        other = _norms(second, ids[1], in_second[chunk])
        with np.errstate(invalid="ignore"):
            apart = np.abs(one - other) > tolerance * np.maximum(np.abs(one), np.abs(other))
        apart |= (np.isnan(one) != np.isnan(other)) | (np.isinf(one) != np.isinf(other))
        differs = np.flatnonzero(apart.any(axis=1))
        if len(differs):
            where = [pairs[place][0].path for place in np.flatnonzero(apart[differs[0]])]
            return Parting(len(steps), len(pairs), int(steps[start + differs[0]]), tuple(where))
    return Parting(len(steps), len(pairs))


def _norms(run: Run, ids: list[int], places: NDArray[np.intp]) -> NDArray[np.float64]:
    low, high = int(places[0]), int(places[-1]) + 1
    matrix = run.reader.matrix(QUANTITY, ids, slice(low, high))
    return matrix[places - low].astype(np.float64)
