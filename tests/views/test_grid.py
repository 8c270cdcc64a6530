"""Layer by step in any number of columns and rows: worst news first, then the largest number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.views.test_tiles import written

from undertow.store.reader import RunReader
from undertow.views.grid import folded, grid_of
from undertow.views.palette import Cell, palette_of

STEPS, LAYERS = 101, 7


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> RunReader:
    random = np.random.default_rng(3)
    norms = (10.0 ** random.normal(-2, 1, (STEPS, LAYERS))).astype(np.float32)
    norms[40, 2] = np.inf
    norms[:, 3] = 0
    folder: Path = tmp_path_factory.mktemp("grid") / "run"
    return written(folder, norms, np.arange(STEPS))


@pytest.mark.parametrize("columns", [1, 7, 50, 101, 500])
def test_a_column_holds_the_largest_of_its_steps(reader: RunReader, columns: int) -> None:
    grid = grid_of(reader, "gradient_norm", list(reader.layers), (3, 99), columns)
    assert grid.columns <= columns
    assert grid.first == 3
    assert 99 <= grid.last < 99 + grid.width
    norms = reader.matrix("gradient_norm")
    for column in range(grid.columns):
        start = 3 + column * grid.width
        part = norms[start : min(start + grid.width, 100)]
        assert grid.values[0, column] == pytest.approx(part[:, 0].max(), rel=2**-7)
        bad = np.isinf(part[:, 2]).any()
        assert grid.cells[2, column] == (Cell.NONFINITE if bad else Cell.VALUE)
    assert (grid.cells[3] == Cell.ZERO).all()
    assert (np.isnan(grid.values) == (grid.cells != Cell.VALUE)).all()


def test_rows_that_share_a_line_tell_the_worst(reader: RunReader) -> None:
    whole = grid_of(reader, "gradient_norm", list(reader.layers), (0, 100), 101)
    few = folded(whole, 3)
    assert len(few.rows) == 3
    assert few.rows[0] == "blocks.0.weight"
    assert few.cells[:, 40].max() == Cell.NONFINITE
    assert (few.cells[:, :40] == Cell.VALUE).all()  # zeros beside numbers: the numbers are shown
    assert np.nanmax(few.values, axis=0) == pytest.approx(np.nanmax(whole.values, axis=0))
    assert folded(whole, 7) is whole


def test_a_layer_without_a_gradient_is_not_hidden_by_its_neighbours(reader: RunReader) -> None:
    whole = grid_of(reader, "gradient_norm", list(reader.layers), (0, 100), 101)
    cells, values = whole.cells.copy(), whole.values.copy()
    cells[0], values[0] = Cell.NO_GRADIENT, np.nan
    few = folded(replace(whole, cells=cells, values=values), 3)
    assert (few.cells[0] == Cell.NO_GRADIENT).all()
    assert np.isnan(few.values[0]).all()


def test_colours_are_those_of_numbers_or_marks(reader: RunReader) -> None:
    grid = grid_of(reader, "gradient_norm", list(reader.layers), (0, 100), 101)
    palette = palette_of("high-contrast")
    colours = grid.colours(palette)
    assert tuple(colours[2, 40]) == palette.marks[Cell.NONFINITE].colour
    assert tuple(colours[3, 0]) == palette.marks[Cell.ZERO].colour
    order = np.argsort(grid.values[0])
    lightness = colours[0].astype(int).sum(-1)[order]
    assert (np.diff(lightness) >= -3).all()


def test_what_was_not_sampled_has_a_tint_of_what_was_last_seen(reader: RunReader) -> None:
    whole = grid_of(reader, "gradient_norm", list(reader.layers), (0, 100), 101)
    cells, values = whole.cells.copy(), whole.values.copy()
    cells[0, [0, 5, 6]] = Cell.NOT_SAMPLED
    values[0, [0, 5, 6]] = np.nan
    palette = palette_of("default")
    before, after = whole.colours(palette), replace(whole, cells=cells, values=values).colours(palette)
    grey = np.array(palette.marks[Cell.NOT_SAMPLED].colour)
    assert after[0, 0].tolist() == grey.tolist()  # nothing has been seen yet
    for column in (5, 6):
        assert after[0, column] == pytest.approx((before[0, 4].astype(int) + grey) / 2, abs=1)
    assert (np.delete(after, [0, 5, 6], axis=1) == np.delete(before, [0, 5, 6], axis=1)).all()
