"""Layer by step for any quantity, in as many columns as a picture has room for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from undertow.schema import Layer
from undertow.store.reader import RunReader
from undertow.views import cell_codes
from undertow.views.palette import Cell, Palette
from undertow.views.scale import Scale, ScaleKind, levels_of, scale_of
from undertow.views.tiles import cells_of

_SIZE = 0x7FFF  # all bits of a code but the sign
# From the least news to the worst: a layer that gets no gradient is not hidden by a neighbour that does.
_BY_NEWS = np.array(
    [Cell.NOT_SAMPLED, Cell.FROZEN, Cell.ZERO, Cell.VALUE, Cell.NO_GRADIENT, Cell.NONFINITE], dtype=np.int8
)
_NEWS = np.argsort(_BY_NEWS).astype(np.int8)  # of each kind of cell
MARKS = {
    Cell.NONFINITE: cell_codes.NOT_A_NUMBER,
    Cell.NO_GRADIENT: cell_codes.NO_GRADIENT,
    Cell.FROZEN: cell_codes.FROZEN,
    Cell.NOT_SAMPLED: cell_codes.NOT_SAMPLED,
    Cell.ZERO: 0,
}


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows are layers, columns intervals of steps; the scale is that of the whole run."""

    quantity: str
    rows: tuple[str, ...]
    first: int  # the step at which the first column begins
    width: int  # steps in a column
    values: NDArray[np.float32]  # the largest of each cell; NaN unless the cell is a VALUE
    cells: NDArray[np.int8]  # of `Cell`
    scale: Scale

    @property
    def columns(self) -> int:
        return self.cells.shape[1]

    @property
    def last(self) -> int:
        return self.first + self.columns * self.width - 1

    @property
    def kinds(self) -> set[Cell]:
        return {Cell(kind) for kind in np.unique(self.cells).tolist()}

    @property
    def seen(self) -> NDArray[np.int64]:
        """For each cell the newest column up to it that was sampled; −1 where there is none yet."""
        return np.maximum.accumulate(np.where(self.cells == Cell.NOT_SAMPLED, -1, np.arange(self.columns)), axis=1)

    def colours(self, palette: Palette) -> NDArray[np.uint8]:
        """Rows × columns × (red, green, blue); marks in their own colours.

        What was not sampled has a tint of what was last seen: the picture of a run with gaps can still be read.
        """
        mix = palette.diverging if self.scale.diverging else palette.sequential
        colours = mix(levels_of(self.scale, self.values))
        for cell, mark in palette.marks.items():
            colours[self.cells == cell] = mark.colour
        seen = self.seen
        rows, columns = np.nonzero((self.cells == Cell.NOT_SAMPLED) & (seen >= 0))
        colours[rows, columns] = tinted(colours[rows, seen[rows, columns]], palette)
        return colours


def tinted(colours: NDArray[np.uint8], palette: Palette) -> NDArray[np.uint8]:
    """What was not sampled, where these were last seen."""
    return colours // 2 + np.array(palette.marks[Cell.NOT_SAMPLED].colour, np.uint8) // 2


def grid_of(reader: RunReader, quantity: str, layers: Sequence[Layer], span: tuple[int, int], columns: int) -> Grid:
    """Steps from the first to the last of the span, both included, in at most `columns` columns."""
    first, last = span
    width = max(1, -(-(last - first + 1) // max(1, columns)))
    count = -(-(last - first + 1) // width)
    found = cells_of(reader, quantity, [layer.id for layer in layers], first, width, count)
    scale = scale_of(reader, quantity)
    cells = np.full(found.shape, Cell.VALUE, np.int8)
    if scale.kind is ScaleKind.LOGARITHMIC:
        cells[found == 0] = Cell.ZERO
    for cell in (Cell.NOT_SAMPLED, Cell.FROZEN, Cell.NO_GRADIENT):
        cells[found == MARKS[cell]] = cell
    cells[(found == cell_codes.NOT_A_NUMBER) | ((found & _SIZE) == cell_codes.INFINITE)] = Cell.NONFINITE
    values = np.where(cells == Cell.VALUE, cell_codes.decode(found), np.float32(np.nan))
    return Grid(quantity, tuple(layer.path for layer in layers), first, width, values, cells, scale)


def folded(grid: Grid, most: int) -> Grid:
    """At most that many rows: neighbours share one, in which the worst news and then the largest number wins."""
    count = len(grid.rows)
    if count <= most:
        return grid
    starts: NDArray[np.int64] = np.linspace(0, count, most, endpoint=False).astype(np.int64)
    cells = _BY_NEWS[np.maximum.reduceat(_NEWS[grid.cells], starts, axis=0)]
    values = np.fmax.reduceat(grid.values, starts, axis=0)
    values[cells != Cell.VALUE] = np.nan
    rows = tuple(grid.rows[int(start)] for start in starts)
    return replace(grid, rows=rows, cells=cells, values=values)
