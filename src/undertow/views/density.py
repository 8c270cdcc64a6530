"""How the absolute values of one layer are spread, over steps: shares by power of two.

Measured at the histogram frames of a run. A run without them has quantiles at every step; what lies between two of
those is then taken to be even on a logarithmic axis, and `is_measured` says that it is so.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.store.reader import RunReader
from undertow.store.row_index import Integers

STREAMS = ("gradient", "weight")  # that have histograms or quantiles
_QUANTILES = ("abs_p05", "abs_p50", "abs_p95", "max_abs")
_BETWEEN = (0.45, 0.45, 0.05)  # shares of the elements; where the lowest twentieth lies nobody knows
_INTERPOLATED = 240  # columns
_NO_STEPS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Density:
    """Column i holds from `steps[i]` to `ends[i]`; bucket k is from 2^(low + k) to the next power of two."""

    steps: Integers
    ends: Integers
    low: int
    shares: NDArray[np.float32]  # columns × buckets, of the elements that are not zero
    is_measured: bool


_NOTHING = Density(_NO_STEPS, _NO_STEPS, 0, np.empty((0, 0), np.float32), is_measured=False)


def density_of(reader: RunReader, stream: str, layer: int, first: int, last: int, columns: int) -> Density:
    name = f"{stream}_histogram"
    if name in reader.quantities:
        steps, stored = reader.sketches(name, [layer])
        found = _measured(steps, stored[:, 0], first, min(last, int(reader.steps[-1])), columns)
        if len(found.steps):
            return found
    if all(f"{stream}_{part}" in reader.quantities for part in _QUANTILES):
        return _interpolated(reader, stream, layer, first, last, min(columns, _INTERPOLATED))
    return _NOTHING


def _measured(steps: Integers, stored: NDArray[np.float32], first: int, last: int, columns: int) -> Density:
    """The histogram frames of a span and the one before it, which still holds where it begins; no more than columns.

    A histogram holds until the next one, also where that has nothing to tell, as when nothing is finite any more.
    """
    begin, end = max(0, int(np.searchsorted(steps, first, "right")) - 1), int(np.searchsorted(steps, last, "right"))
    chosen = slice(begin, end, max(1, -(-(end - begin) // max(1, columns))))
    steps, stored = steps[chosen], stored[chosen]
    ends = np.append(steps[1:] - 1, last)[: len(steps)]
    known = ~np.isnan(stored[:, 0])
    steps, ends, stored = steps[known], ends[known], stored[known]
    if not len(steps):
        return _NOTHING
    bases, shares = stored[:, 0].astype(np.int64), stored[:, 1:]
    low = int(bases.min())
    aligned = np.zeros((len(steps), int(bases.max()) - low + shares.shape[1]), np.float32)
    for column, base in enumerate((bases - low).tolist()):
        aligned[column, base : base + shares.shape[1]] = shares[column]
    return _trimmed(Density(steps, ends, low, aligned, is_measured=True))


def _interpolated(reader: RunReader, stream: str, layer: int, first: int, last: int, columns: int) -> Density:
    windows = [reader.window(f"{stream}_{part}", first, last, columns, [layer]) for part in _QUANTILES]
    steps, ends = windows[0].steps, windows[0].last_steps
    with np.errstate(divide="ignore", invalid="ignore"):
        places = np.stack([np.log2(window.mean[:, 0].astype(np.float64)) for window in windows])
    known = np.isfinite(places).all(axis=0)
    steps, ends, places = steps[known], ends[known], np.maximum.accumulate(places[:, known])  # means may cross
    if not len(steps):
        return _NOTHING
    low, high = int(np.floor(places.min())), int(np.floor(places.max())) + 1
    edges = np.arange(low, high + 1)[:, None]
    shares = np.zeros((high - low, len(steps)))
    for share, begin, end in zip(_BETWEEN, places[:-1], places[1:]):
        width = np.maximum(end - begin, 1e-6)
        below = np.clip((edges - begin) / width, 0.0, 1.0)
        shares += share * np.diff(below, axis=0)
    return _trimmed(Density(steps, ends, low, shares.T.astype(np.float32), is_measured=False))


def _trimmed(density: Density) -> Density:
    """Without buckets that are empty everywhere."""
    used = np.flatnonzero(density.shares.any(axis=0))
    first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
    shares = density.shares[:, first:last]
    return Density(density.steps, density.ends, density.low + first, shares, density.is_measured)
