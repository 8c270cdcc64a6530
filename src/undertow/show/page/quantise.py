"""Cells of a picture in a byte each: every layer has a scale of its own, so that its line is smooth, too.

Bytes below `MARKS` are places on the scale of the row; the rest say why there is no number, or that it is zero.
`embedded.js` reads what is written here.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.views.cell_codes import FROZEN, INFINITE, NO_GRADIENT, NOT_A_NUMBER, NOT_SAMPLED, Codes, decode
from undertow.views.scale import ScaleKind

MARKED = (0, NOT_A_NUMBER, INFINITE, INFINITE | 0x8000, NOT_SAMPLED, FROZEN, NO_GRADIENT)  # in the order of their bytes
MARKS = 256 - len(MARKED)
_FINE = 0.01  # of a logarithm: finer steps than one percent are for rows that hardly move
_LEAST_LEVELS = 64
_DEPTH = 1e4  # on both sides of zero, what is smaller than the largest by this factor is told apart linearly


@dataclass(frozen=True, slots=True)
class Quantised:
    kind: ScaleKind
    unit: float  # of a scale on both sides of zero: about there it turns from linear to logarithmic
    low: NDArray[np.float32]  # of each row: what byte 0 means, and how far it is to the next
    step: NDArray[np.float32]
    cells: NDArray[np.uint8]  # rows × columns

    def to_bytes(self) -> bytes:
        return self.low.astype("<f4").tobytes() + self.step.astype("<f4").tobytes() + self.cells.tobytes()


def quantise(codes: Codes, kind: ScaleKind, exact: NDArray[np.float32] | None = None) -> Quantised:
    """`exact` are the numbers that the codes stand for, where they are known; NaN elsewhere."""
    numbers = decode(codes).astype(np.float64)
    if exact is not None:
        numbers = np.where(np.isfinite(exact), exact, numbers)
    numbers[np.isin(codes, MARKED)] = np.nan
    if kind is ScaleKind.LOGARITHMIC and bool((numbers < 0).any()):
        kind = ScaleKind.SIGNED
    sizes = np.abs(numbers[np.isfinite(numbers)])
    unit = float(sizes.max()) / _DEPTH if kind is ScaleKind.SIGNED and sizes.any() else 1.0
    places = _straight(numbers, kind, unit)
    low, high = _ends(places)
    step = (high - low) / (MARKS - 1)
    if kind is ScaleKind.LOGARITHMIC:
        step = np.maximum(step, np.minimum(_FINE, (high - low) / _LEAST_LEVELS))
    only_whole = (~np.isfinite(places) | (places == np.rint(places))).all(axis=1)
    whole = (kind is ScaleKind.LINEAR) & only_whole & (high - low < MARKS)
    step = step.astype(np.float32)
    step = np.where(whole | (step == 0), np.float32(1), step)
    cells = np.zeros(codes.shape, np.uint8)
    known = np.isfinite(places)
    scaled = np.rint((places - low[:, None]) / step[:, None])
    cells[known] = np.clip(scaled[known], 0, MARKS - 1).astype(np.uint8)
    for place, code in enumerate(MARKED):
        cells[codes == code] = MARKS + place
    return Quantised(kind, unit, low.astype(np.float32), step, cells)


def _straight(numbers: NDArray[np.float64], kind: ScaleKind, unit: float) -> NDArray[np.float64]:
    """As places on a scale on which equal distances count the same."""
    if kind is ScaleKind.LOGARITHMIC:
        with np.errstate(invalid="ignore"):
            return np.log(numbers)
    return np.arcsinh(numbers / unit) if kind is ScaleKind.SIGNED else numbers


def _ends(places: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The smallest and the largest place of each row; 0 where it has none."""
    known = np.isfinite(places)
    low = np.where(known, places, np.inf).min(axis=1, initial=np.inf)
    high = np.where(known, places, -np.inf).max(axis=1, initial=-np.inf)
    some = low <= high
    return np.where(some, low, 0.0), np.where(some, high, 0.0)
