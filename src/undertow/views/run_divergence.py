"""Where two runs diverge: the first step at which a gradient differs, in which layers, and when others follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.run import Run
from undertow.schema import GradientState, Layer
from undertow.views.tiles import in_reading_order

QUANTITY = "gradient_norm"
TOLERANCE = 1e-6  # of the larger number: sums of floats in another order differ by about as much
CLEAR = 0.1  # of the larger number: no longer a matter of rounding
_STEPS_AT_ONCE = 512

# What a gradient was, so that a number is told from none: not measured, a number, NaN or infinite, None, frozen.
_UNMEASURED, _NUMBER, _NONFINITE, _NONE, _FROZEN = range(5)


@dataclass(frozen=True, slots=True)
class RunDivergence:
    common_steps: int
    common_layers: int
    step: int | None = None  # None: they agree wherever both were measured
    layers: tuple[str, ...] = ()  # those that differ at that step, as executed
    reason: str = ""  # why nothing could be compared


@dataclass(frozen=True, slots=True)
class LayerDivergence:
    """When a layer of one run and the layer of that name in the other cease to be the same."""

    layer: str
    step: int | None  # first difference beyond rounding; None: there is none
    clear_step: int | None  # first difference of more than a tenth, or of kind (a number here, NaN or None there)
    norms: tuple[float | None, float | None]  # gradient norms at `step`; None: not finite, or no gradient


def divergence(first: Run, second: Run) -> RunDivergence:
    """Compares gradient norms of layers of the same name, at steps that both runs recorded."""
    return layer_divergences(first, second, only_the_first=True)[0]


def layer_divergences(
    first: Run, second: Run, *, only_the_first: bool = False
) -> tuple[RunDivergence, list[LayerDivergence]]:
    """The same, and when each layer that both have follows, as executed; or no further than the first difference."""
    common = _Common.of(first, second)
    count = len(common.pairs)
    if common.reason:
        return RunDivergence(len(common.steps), count, reason=common.reason), []
    parted, clear = np.full(count, -1), np.full(count, -1)
    norms = np.full((2, count), np.nan)
    for start, one, other in common.chunks():
        for found, tolerance in ((parted, TOLERANCE), (clear, CLEAR)):
            differs = _apart(one, other, tolerance)
            new = np.flatnonzero((found < 0) & differs.any(axis=0))
            rows = differs[:, new].argmax(axis=0)
            found[new] = start + rows
            if found is parted:
                norms[:, new] = one.norms[rows, new], other.norms[rows, new]
        if (clear >= 0).all() or (only_the_first and (parted >= 0).any()):
            break

    def step(place: int) -> int | None:
        return int(common.steps[place]) if place >= 0 else None

    layers = [
        LayerDivergence(layer.path, step(int(parted[row])), step(int(clear[row])), (_known(a), _known(b)))
        for row, ((layer, _), a, b) in enumerate(zip(common.pairs, norms[0].tolist(), norms[1].tolist()))
    ]
    begin = min((one.step for one in layers if one.step is not None), default=None)
    there = tuple(one.layer for one in layers if begin is not None and one.step == begin)
    return RunDivergence(len(common.steps), count, begin, there), layers


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class _Gradients:
    """(steps × layers) of one run."""

    norms: NDArray[np.float64]
    kinds: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class _Common:
    """What two runs have in common."""

    runs: tuple[Run, Run]
    pairs: list[tuple[Layer, Layer]]
    steps: NDArray[np.int64]
    places: tuple[NDArray[np.intp], NDArray[np.intp]]  # of these steps in each run
    reason: str = ""

    @classmethod
    def of(cls, first: Run, second: Run) -> _Common:
        ordered = in_reading_order(first.layers.parameters)
        pairs = [(layer, other) for layer in ordered if (other := second.layers.get(layer.path)) is not None]
        steps, in_first, in_second = np.intersect1d(first.steps, second.steps, return_indices=True)
        reason = ""
        if QUANTITY not in first.quantities or QUANTITY not in second.quantities:
            reason = "one of them has no gradients"
        elif not len(steps) or not pairs:
            reason = f"they have no {'step' if pairs else 'layer'} in common"
        return cls((first, second), pairs, steps, (in_first, in_second), reason)

    def chunks(self) -> Iterator[tuple[int, _Gradients, _Gradients]]:
        ids = [layer.id for layer, _ in self.pairs], [other.id for _, other in self.pairs]
        for start in range(0, len(self.steps), _STEPS_AT_ONCE):
            part = slice(start, start + _STEPS_AT_ONCE)
            one, other = (_gradients(self.runs[i], ids[i], self.places[i][part]) for i in (0, 1))
            yield start, one, other


def _gradients(run: Run, ids: list[int], places: NDArray[np.intp]) -> _Gradients:
    low, high = int(places[0]), int(places[-1]) + 1

    def matrix(quantity: str) -> NDArray[np.float64]:
        if quantity not in run.quantities:
            return np.full((len(places), len(ids)), np.nan)
        return run.reader.matrix(quantity, ids, slice(low, high))[places - low].astype(np.float64)

    norms, states = matrix(QUANTITY), matrix("gradient_state")
    kinds = np.where(np.isnan(norms), _UNMEASURED, _NUMBER).astype(np.int8)
    kinds[states == GradientState.NONE] = _NONE
    kinds[states == GradientState.FROZEN] = _FROZEN
    kinds[np.isinf(norms) | (matrix("gradient_nonfinite_count") > 0)] = _NONFINITE
    return _Gradients(norms, kinds)


def _apart(one: _Gradients, other: _Gradients, tolerance: float) -> NDArray[np.bool_]:
    """Only where both were measured: what a disk budget took away, or a rarer sampling left out, is no difference."""
    measured = (one.kinds != _UNMEASURED) & (other.kinds != _UNMEASURED)
    with np.errstate(invalid="ignore"):
        far = np.abs(one.norms - other.norms) > tolerance * np.maximum(np.abs(one.norms), np.abs(other.norms))
    numbers = (one.kinds == _NUMBER) & (other.kinds == _NUMBER)
    return measured & ((one.kinds != other.kinds) | (numbers & far))
