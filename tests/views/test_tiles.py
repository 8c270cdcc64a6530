"""Tiles agree with a pass over every frame, at every zoom level, and their codes with the numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.store.small_runs import new_writer

from undertow.schema import STREAMS, Block, Frame
from undertow.store.reader import RunReader
from undertow.views.cell_codes import INFINITE, NO_GRADIENT, NOT_A_NUMBER, NOT_SAMPLED, decode, encode
from undertow.views.tiles import COLUMNS, tile_of

GRADIENT = STREAMS["gradient"].names
LAYERS = 5


def test_codes_keep_what_matters() -> None:
    random = np.random.default_rng(0)
    values = (random.normal(size=5000) * 10.0 ** random.integers(-44, 38, 5000)).astype(np.float32)
    values = np.concatenate([values, np.float32([0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, np.inf, -np.inf])])
    shown = decode(encode(values))
    assert ((shown == 0) == (values == 0)).all()
    assert (np.isfinite(shown) == np.isfinite(values)).all()
    assert (np.sign(shown) == np.sign(values)).all()
    normal = np.isfinite(values) & (np.abs(values) > 1e-35)
    assert shown[normal] == pytest.approx(values[normal], rel=2**-8)
    assert encode(np.float32([np.nan])) == NOT_SAMPLED


def written(
    folder: Path, norms: NDArray[np.float32], steps: NDArray[np.int64], **others: NDArray[np.float32]
) -> RunReader:
    """A run of (frames × layers) norms."""
    writer = new_writer(folder, norms.shape[1])
    ids = np.arange(norms.shape[1], dtype=np.int32)
    for place, step in enumerate(steps.tolist()):
        values = np.full((len(GRADIENT), norms.shape[1]), np.nan, np.float32)
        values[GRADIENT.index("gradient_norm")] = norms[place]
        for name, matrix in others.items():
            values[GRADIENT.index(name)] = matrix[place]
        assert writer.append(Frame(place, step, float(step), {}, {"gradient": Block("gradient", ids, values)}))
    writer.close()
    return RunReader(folder)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunReader, NDArray[np.float32]]:
    random = np.random.default_rng(1)
    norms = (10.0 ** random.normal(-2, 2, size=(6000, LAYERS))).astype(np.float32)
    return written(tmp_path_factory.mktemp("tiles") / "run", norms, np.arange(6000)), norms


@pytest.mark.parametrize("level", range(6))
@pytest.mark.parametrize("statistic", ["maximum", "minimum"])
def test_every_column_holds_the_extreme_of_its_steps(
    long: tuple[RunReader, NDArray[np.float32]], level: int, statistic: str
) -> None:
    reader, norms = long
    width = 1 << level
    for index in range(-(-len(norms) // (COLUMNS * width))):
        tile = tile_of(reader, "gradient_norm", level, index, statistic)
        assert tile.last_step == 5999
        first = index * COLUMNS * width
        part = norms[first : first + COLUMNS * width]
        expected = np.full((LAYERS, COLUMNS), np.nan, np.float32)
        for column in range(-(-len(part) // width)):
            cell = part[column * width : (column + 1) * width]
            expected[:, column] = cell.max(axis=0) if statistic == "maximum" else cell.min(axis=0)
        if width <= 16:  # beyond, a row of the zoom levels may begin in one column and end in the next
            assert (tile.codes == encode(expected)).all()
        else:
            assert (np.isnan(decode(tile.codes)) == np.isnan(expected)).all()


def test_the_mean_is_the_mean(long: tuple[RunReader, NDArray[np.float32]]) -> None:
    reader, norms = long
    tile = tile_of(reader, "gradient_norm", 3, 1, "mean")
    expected = norms[2048:4096].reshape(COLUMNS, 8, LAYERS).mean(axis=1).T
    assert decode(tile.codes) == pytest.approx(expected, rel=2**-7)


def test_a_single_bad_step_is_seen_at_every_zoom(tmp_path: Path) -> None:
    norms = np.ones((5000, LAYERS), np.float32)
    counts = np.zeros_like(norms)
    norms[3333, 2], counts[3333, 2] = np.nan, 7
    norms[1111, 4] = np.inf
    reader = written(tmp_path / "run", norms, np.arange(5000), gradient_nonfinite_count=counts)
    for level in range(6):
        width = COLUMNS << level
        for step, layer, code in ((3333, 2, NOT_A_NUMBER), (1111, 4, INFINITE)):
            tile = tile_of(reader, "gradient_norm", level, step // width)
            column = step % width >> level
            row = tile.codes[layer]
            assert code in row[max(0, column - 1) : column + 2]
            assert (row == code).sum() == 1
            assert code not in tile.codes[0]


def test_rare_samples_stand_for_the_steps_between_and_a_gap_stays_one(tmp_path: Path) -> None:
    steps = np.concatenate([np.arange(0, 400, 50), np.arange(2000, 2400, 50)])
    norms = np.repeat(np.float32([[1.0]]), len(steps), axis=0) * np.arange(1, len(steps) + 1, dtype=np.float32)[:, None]
    reader = written(tmp_path / "run", norms, steps)
    shown = decode(tile_of(reader, "gradient_norm", 0, 0).codes)[0]
    assert shown == pytest.approx(np.arange(COLUMNS) // 50 + 1)
    assert (tile_of(reader, "gradient_norm", 0, 3).codes == NOT_SAMPLED).all()  # steps 768 to 1023


def test_no_gradient_is_told_from_not_sampled(tmp_path: Path) -> None:
    norms = np.ones((20, LAYERS), np.float32)
    norms[:, 1] = np.nan
    states = np.zeros_like(norms)
    states[:, 1] = 1
    reader = written(tmp_path / "run", norms, np.arange(20), gradient_state=states)
    tile = tile_of(reader, "gradient_norm", 0, 0)
    assert (tile.codes[1, :20] == NO_GRADIENT).all()
    assert (tile.codes[:, 20:] == NOT_SAMPLED).all()
