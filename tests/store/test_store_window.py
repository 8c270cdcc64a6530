"""Any window agrees with a brute-force pass over every frame, whatever level it was read from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.store.small_runs import new_writer

from undertow.schema import STREAMS, Block, Frame
from undertow.store.layout import ZOOM_LEVELS
from undertow.store.reader import RunReader
from undertow.store.row_index import RowTable
from undertow.store.window import Window

UPDATE = STREAMS["update"]
FRAMES = 5000


def values_of(frames: int, layers: int, seed: int = 0) -> NDArray[np.float32]:
    """(frames × quantities × layers) with infinities, NaN and numbers of all sizes."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(frames, 4, layers)) * 10.0 ** random.integers(-30, 30, size=(frames, 1, 1))
    values = values.astype(np.float32)
    values[random.random(values.shape) < 0.05] = np.nan
    values[random.random(values.shape) < 0.02] = np.inf
    values[random.random(values.shape) < 0.02] = -np.inf
    values[:40, 1, 0] = np.nan
    return values


def write(folder: Path, values: NDArray[np.float32], *, close: bool = True, **options: object) -> None:
    layers = np.arange(values.shape[2], dtype=np.int32)
    writer = new_writer(folder, values.shape[2], **options)
    start = 0 if writer.last_step is None else writer.last_step + 1
    for i, one in enumerate(values, start=start):
        assert writer.append(Frame(i, i, float(i), {}, {"update": Block("update", layers, one)})), writer.last_error
    if close:
        writer.close()
    else:  # as a killed process leaves it: nothing flushed
        for track in writer._tracks.values():
            track._pyramid = None
        writer._scalars._rows = None
        writer.close()


def check(window: Window, values: NDArray[np.float32], first: int, last: int) -> None:
    """`values` is (frames × layers) of the quantity; step and frame number are the same here."""
    assert window.steps[0] == first
    assert window.last_steps[-1] == last
    assert (window.steps[1:] == window.last_steps[:-1] + 1).all()
    for row, (low, high) in enumerate(zip(window.steps, window.last_steps)):
        part = values[low : high + 1]
        finite = np.isfinite(part)
        assert window.nan[row].tolist() == np.isnan(part).sum(axis=0).tolist()
        assert window.nonfinite[row].tolist() == np.isinf(part).sum(axis=0).tolist()
        for layer in range(values.shape[1]):
            numbers = part[finite[:, layer], layer]
            if not len(numbers):
                assert np.isnan([window.minimum[row, layer], window.mean[row, layer], window.maximum[row, layer]]).all()
                continue
            assert window.minimum[row, layer] == numbers.min()
            assert window.maximum[row, layer] == numbers.max()
            scale = np.abs(numbers).max()
            np.testing.assert_allclose(
                window.mean[row, layer] / scale, (numbers.astype("f8") / scale).mean(), atol=1e-6
            )


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunReader, NDArray[np.float32]]:
    values = values_of(FRAMES, 3)
    folder = tmp_path_factory.mktemp("window") / "run"
    write(folder, values)
    return RunReader(folder), values


@pytest.mark.parametrize(
    ("first", "last", "columns", "level"),
    [
        (0, FRAMES - 1, 10, 256),
        (0, FRAMES - 1, 1, 4096),
        (17, 4801, 100, 16),
        (17, 4801, 20, 16),
        (255, 4113, 7, 256),
        (100, 180, 2000, 1),
        (3, 3, 5, 1),
        (4990, 4999, 3, 1),
    ],
)
def test_window_agrees_with_brute_force(
    long_run: tuple[RunReader, NDArray[np.float32]], first: int, last: int, columns: int, level: int
) -> None:
    reader, values = long_run
    for place, quantity in enumerate(UPDATE.names):
        window = reader.window(quantity, first, last, columns)
        check(window, values[:, place], first, last)
        assert window.level == level
        assert min(columns, last - first + 1) <= len(window.steps) < 2 * max(columns, 17)


def test_window_of_some_layers(long_run: tuple[RunReader, NDArray[np.float32]]) -> None:
    reader, values = long_run
    check(reader.window("update_ratio", 5, 3000, 30, [2, 0]), values[:, 1][:, [2, 0]], 5, 3000)


def test_window_outside_of_the_run_is_empty(long_run: tuple[RunReader, NDArray[np.float32]]) -> None:
    window = long_run[0].window("update_ratio", 9000, 9999, 10)
    assert len(window.steps) == 0
    assert window.mean.shape == (0, 3)
    assert len(long_run[0].window("weight_norm", 0, 10, 10).steps) == 0


def test_window_over_a_kill_and_a_resume(tmp_path: Path) -> None:
    """Frames that no zoom level had taken in when the process died are read one by one."""
    values = values_of(1500, 2)
    write(tmp_path / "run", values[:777], close=False)
    write(tmp_path / "run", values[777:], resume=True)
    reader = RunReader(tmp_path / "run")
    for columns in (1, 3, 10, 60, 3000):
        check(reader.window("update_norm", 0, 1499, columns), values[:, 0], 0, 1499)


@pytest.mark.parametrize("budget", [3_000_000, 1_200_000])
def test_window_of_a_thinned_run_still_has_every_extreme(tmp_path: Path, budget: int) -> None:
    """Where frames or whole files of the finest zoom level are gone, the coarser levels speak for them."""
    values = values_of(6000, 40)
    write(tmp_path / "run", values, disk_budget=budget)
    reader = RunReader(tmp_path / "run")
    kept = ~np.isnan(reader.matrix("update_norm")).all(axis=1)
    assert kept.sum() < 5000
    finest = RowTable.of(reader._zoom.segments(("update", 16)))
    assert (finest.frames.sum() < 6000) == (budget == 1_200_000)
    for columns in (1, 5, 20, 100, 300, 1000):
        check(reader.window("update_norm", 0, 5999, columns), values[:, 0], 0, 5999)


def test_window_joins_layer_sets(tmp_path: Path) -> None:
    """Two optimizers in turn: each layer is summed up over its own frames."""
    writer = new_writer(tmp_path / "run", 4)
    values = values_of(900, 2)
    for i, one in enumerate(values):
        layers = np.array([0, 1] if i % 2 else [2, 3], np.int32)
        writer.append(Frame(i, i, 0.0, {}, {"update": Block("update", layers, one)}))
    writer.close()
    window = RunReader(tmp_path / "run").window("update_norm", 0, 899, 10)
    assert len(window.steps) >= 10
    for layer, column, start in ((0, 0, 1), (1, 1, 1), (2, 0, 0), (3, 1, 0)):
        numbers = values[start::2, 0, column]
        finite = numbers[np.isfinite(numbers)]
        assert np.nanmin(window.minimum[:, layer]) == finite.min()
        assert np.nanmax(window.maximum[:, layer]) == finite.max()
        assert window.nonfinite[:, layer].sum() == np.isinf(numbers).sum()
        assert window.nan[:, layer].sum() == np.isnan(numbers).sum()


def indexed(reader: RunReader) -> tuple[int, int]:
    """Of how many files of frames the rows were looked at, and how many there are."""
    segments = reader._segments.segments(("update", 1))
    return sum(segment._index is not None for segment in segments), len(segments)


@pytest.fixture
def many_files(tmp_path: Path) -> tuple[Path, NDArray[np.float32]]:
    values = values_of(4000, 40)
    write(tmp_path / "run", values, disk_budget=20_000_000)  # small files, and nothing to thin
    return tmp_path / "run", values


@pytest.mark.parametrize(
    ("first", "last", "columns", "most"),
    [(0, 3999, 100, 2), (0, 3999, 10, 2), (3000, 3100, 200, 2), (700, 3500, 40, 4)],
)
def test_a_window_looks_at_no_more_frames_than_it_must(
    many_files: tuple[Path, NDArray[np.float32]], first: int, last: int, columns: int, most: int
) -> None:
    folder, values = many_files
    reader = RunReader(folder)
    check(reader.window("update_norm", first, last, columns), values[:, 0], first, last)
    looked, there = indexed(reader)
    assert there >= 8
    assert looked <= most


def test_frames_speak_for_a_damaged_summary(many_files: tuple[Path, NDArray[np.float32]]) -> None:
    folder, values = many_files
    for level in ZOOM_LEVELS:  # the rows that sum up frame 2048
        segment = RunReader(folder)._zoom.segments(("update", level))[0]
        data = bytearray(segment.path.read_bytes())
        at = segment._start + (2048 // level) * segment._stride
        data[at : at + 8] = b"\xa5" * 8
        segment.path.write_bytes(data)
    reader = RunReader(folder)
    check(reader.window("update_norm", 0, 3999, 150), values[:, 0], 0, 3999)
    looked, there = indexed(reader)
    assert looked == there


def test_steps_that_are_trained_again_are_all_in_a_window(tmp_path: Path) -> None:
    """Resumed from an earlier step: steps go back while frames go on."""
    values = values_of(3000, 40)
    layers = np.arange(40, dtype=np.int32)
    writer = new_writer(tmp_path / "run", 40, disk_budget=16_000_000)
    for i, one in enumerate(values):
        step = i if i < 2000 else i - 1500
        assert writer.append(Frame(i, step, float(i), {}, {"update": Block("update", layers, one)}))
    writer.close()
    reader = RunReader(tmp_path / "run")
    for first, last in ((0, 1999), (600, 900), (1600, 1999)):
        window = reader.window("update_norm", first, last, 50)
        shown = [i for i in range(3000) if first <= (i if i < 2000 else i - 1500) <= last]
        finite = np.where(np.isfinite(values[shown, 0]), values[shown, 0], np.nan)
        assert np.nanmax(window.maximum) == np.nanmax(finite)
        assert window.nan.sum() == np.isnan(values[shown, 0]).sum()
