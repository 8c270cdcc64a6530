"""Layer × step in tiles of 256 columns: what a heatmap that can be zoomed and moved asks for.

At zoom level n a column covers 2ⁿ steps; tile number i of that level begins at step i · 256 · 2ⁿ. A tile whose last
step is over never changes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from undertow.schema import QUANTITIES, STREAMS, GradientState, Layer
from undertow.store.layout import ZOOM_LEVELS
from undertow.store.reader import RunReader
from undertow.store.row_index import Integers
from undertow.store.window import Window
from undertow.views.cell_codes import FROZEN, INFINITE, NO_GRADIENT, NOT_A_NUMBER, NOT_SAMPLED, Codes, encode

COLUMNS = 256
DEEPEST = 40  # zoom level at which one tile holds more steps than any training has
STATISTICS = ("maximum", "mean", "minimum")
_REACH = 4  # widths of a tile in which the neighbours of a rare sample are looked for
_UNJOINED = 0.6  # a window that is asked for more than half of its rows gives all of them
_ALIGNED = {1 << level for level in range(DEEPEST + 1)}  # widths whose columns begin where rows of zoom levels do
_HOLD = 2.5  # usual distances between samples over which one is drawn on; beyond it nothing was sampled


@dataclass(frozen=True, slots=True)
class Tile:
    codes: Codes  # layers × columns, in the order of `subjects`
    last_step: int  # the newest step of the run when it was made


def subjects(reader: RunReader, quantity: str) -> list[int]:
    """Ids of the layers that a quantity is measured of."""
    known = QUANTITIES.get(quantity)
    if known is None:
        return [layer.id for layer in reader.layers]
    modules = STREAMS[known.stream].covers_modules
    return [layer.id for layer in reader.layers if layer.is_module is modules]


def in_reading_order(layers: Iterable[Layer]) -> list[Layer]:
    """As executed; in the model's own order where some have no place in the execution."""
    layers = list(layers)
    if any(layer.order is None for layer in layers):
        return layers
    return sorted(layers, key=lambda layer: (layer.order or 0, layer.id))


def fits(path: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(path, glob) for glob in globs)


def drawable(reader: RunReader) -> list[str]:
    """Quantities with one number for each layer and step."""
    return [name for name in reader.quantities if name not in QUANTITIES or QUANTITIES[name].width == 1]


def tile_of(reader: RunReader, quantity: str, level: int, index: int, statistic: str = "maximum") -> Tile:
    width = 1 << level
    ids = subjects(reader, quantity)
    codes = cells_of(reader, quantity, ids, index * COLUMNS * width, width, COLUMNS, statistic)
    return Tile(codes, _last_step(reader))


def cells_of(
    reader: RunReader,
    quantity: str,
    ids: Sequence[int],
    first: int,
    width: int,
    columns: int,
    statistic: str = "maximum",
) -> Codes:
    """Layers × columns: the first column begins at step `first`, each covers `width` steps."""
    span = (first, first + columns * width - 1)
    over = min(_last_step(reader), span[1]) + 1 - first  # steps of the columns that the run has reached
    # At the end of a run, rows that the window joins to be as many as the columns would not begin where columns do.
    fine = columns if over == columns * width and width in _ALIGNED else _unjoined(over, width)
    rows = reader.window(quantity, *span, fine, ids)
    if len(rows.steps) < over // width:  # each of rare samples stands for the steps up to the next one
        reach = _reach(rows, span)
        span = (span[0] - reach, span[1] + reach)
        fine = _unjoined(over + 2 * reach, width)
        rows = reader.window(quantity, *span, fine, ids)
    places = _Columns.of(rows, first, width, columns)
    codes = encode(places.statistic(rows, statistic))
    codes[places.fold(rows.nonfinite, np.fmax) > 0] = INFINITE

    def look_up(name: str, layers: NDArray[np.bool_]) -> NDArray[np.float32]:
        """The largest value of another quantity of the same stream, 0 for layers of no interest."""
        found = np.zeros(codes.shape, np.float32)
        chosen = np.flatnonzero(layers)
        if len(chosen) and name in reader.quantities:
            window = reader.window(name, *span, fine, [ids[place] for place in chosen.tolist()])
            found[:, chosen] = np.nan_to_num(places.fold(window.maximum, np.fmax))
        return found

    unknown = codes == NOT_SAMPLED
    if quantity.startswith(("gradient_", "stepped_")):
        states = look_up("gradient_state", _any(unknown))
        codes[unknown & (states == GradientState.NONE)] = NO_GRADIENT
        codes[unknown & (states == GradientState.FROZEN)] = FROZEN
    # A norm is itself not finite when an element is not; other statistics are of the finite elements.
    tells = quantity.endswith(("_norm", "_rms"))
    suspects = _any(rows.nan) if tells else np.ones(len(ids), np.bool_)
    codes[look_up(_count_of_nonfinite(quantity), suspects) > 0] = NOT_A_NUMBER
    return np.ascontiguousarray(codes.T)


def _last_step(reader: RunReader) -> int:
    return int(reader.steps[-1]) if len(reader.steps) else -1


def _unjoined(steps: int, width: int) -> int:
    """How many rows to ask a window for, so that it reads rows no wider than a column and gives each of them."""
    widest = max(frames for frames in (1, *ZOOM_LEVELS) if frames <= width)
    return max(1, int(_UNJOINED * steps / widest))


def _reach(rows: Window, span: tuple[int, int]) -> int:
    """How far beyond the span its neighbouring samples are looked for."""
    if len(rows.steps) > 2:
        return int(2 * _HOLD * float(np.median(np.diff(rows.steps))))
    return _REACH * (span[1] + 1 - span[0])


@dataclass(frozen=True, slots=True)
class _Columns:
    """Which rows of a window make up each column."""

    starts: Integers  # of groups of rows that begin in the same column
    group: Integers  # of each column; −1: nothing was sampled

    @classmethod
    def of(cls, rows: Window, first: int, width: int, count: int) -> _Columns:
        begin, end = (rows.steps - first) // width, (rows.last_steps - first) // width
        starts = np.flatnonzero(np.diff(begin, prepend=np.iinfo(np.int64).min))
        if not len(starts):
            return cls(starts, np.full(count, -1))
        begins, ends = begin[starts], np.maximum.reduceat(end, starts)
        gaps = np.diff(begins)
        usual = float(np.median(gaps)) if len(gaps) else 1.0
        reaches = np.append(np.where(gaps <= max(1.0, _HOLD * usual), begins[1:] - 1, ends[:-1]), ends[-1])
        columns = np.arange(count)
        group = np.searchsorted(begins, columns, "right") - 1
        return cls(starts, np.where((group >= 0) & (columns <= reaches[np.maximum(group, 0)]), group, -1))

    def statistic(self, rows: Window, name: str) -> NDArray[np.float32]:
        if name == "maximum":
            return self.fold(rows.maximum, np.fmax)
        if name == "minimum":
            return self.fold(rows.minimum, np.fmin)
        measured = ~np.isnan(rows.mean)
        with np.errstate(invalid="ignore"):
            return self.fold(np.where(measured, rows.mean, 0), np.add) / self.fold(measured.astype(np.int32), np.add)

    def fold(self, values: NDArray[np.float32] | NDArray[np.int32], combine: np.ufunc) -> NDArray[np.float32]:
        """Columns × layers, NaN where nothing was sampled."""
        out = np.full((len(self.group), values.shape[1]), np.nan, np.float32)
        if len(self.starts):
            sampled = self.group >= 0
            out[sampled] = combine.reduceat(values, self.starts, axis=0)[self.group[sampled]]
        return out


def _any(cells: NDArray[np.bool_] | NDArray[np.int32]) -> NDArray[np.bool_]:
    """For each layer: is there any?"""
    return np.count_nonzero(cells, axis=0) > 0


def _count_of_nonfinite(quantity: str) -> str:
    """The quantity that counts the non-finite elements of the same tensor."""
    for of in ("stepped_gradient", "output_gradient", "gradient", "weight", "activation"):
        if quantity.startswith(of):
            return f"{of}_nonfinite_count"
    return ""
