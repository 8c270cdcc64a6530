"""What goes into a run comes out of it, bit by bit."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.small_runs import assert_same_frame, block, frame, layer_graph, layer_table, new_writer, same_bits

from undertow.errors import UnknownNameError
from undertow.schema import QUANTITIES, STREAMS, Block, Frame
from undertow.store.reader import RunReader

LAYERS = 5
LAYER_STREAMS = sorted(name for name, stream in STREAMS.items() if not stream.covers_connections)


@st.composite
def blocks(draw: st.DrawFn, stream: str) -> Block:
    layer_ids = draw(st.lists(st.integers(0, LAYERS - 1), unique=True, max_size=LAYERS))
    quantities = STREAMS[stream].quantities
    shape = (len(quantities), len(layer_ids) * quantities[0].width)
    # Any 32 bits: every NaN pattern, infinities, denormals.
    bits = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, 2**32, shape, np.uint32)
    if draw(st.booleans()):
        bits[:, ::2] = draw(st.sampled_from([0x7FC00000, 0xFFC00001, 0x7F800000, 0x00000001, 0x7FA00000]))
    return Block(stream, np.array(layer_ids, np.int32), bits.view(np.float32))


@st.composite
def frame_lists(draw: st.DrawFn) -> list[Frame]:
    frames: list[Frame] = []
    sequence = step = 0
    names = st.sampled_from(["loss", "lr", "step", "time", "sequence", "значение", "", "a b", "0"])
    for _ in range(draw(st.integers(0, 12))):
        streams = draw(st.sets(st.sampled_from(LAYER_STREAMS), max_size=3))
        scalars = draw(st.dictionaries(names, st.floats(), max_size=4))
        time = draw(st.floats(allow_nan=False))
        frames.append(Frame(sequence, step, time, scalars, {name: draw(blocks(name)) for name in sorted(streams)}))
        sequence += draw(st.integers(1, 3))
        step += draw(st.integers(0, 2))
    return frames


@settings(max_examples=60, deadline=None)
@given(frame_lists(), st.booleans())
def test_any_frames_come_back_as_they_were(frames: list[Frame], closed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = new_writer(Path(folder) / "run", LAYERS)
        for one in frames:
            assert writer.append(one), writer.last_error
        if closed:
            writer.close()
        reader = RunReader(Path(folder) / "run")
        found = list(reader.frames())
        assert len(found) == len(frames)
        for one, expected in zip(found, frames):
            assert_same_frame(one, expected)
        assert reader.problems == []
        assert reader.steps.tolist() == sorted({one.step for one in frames})
        writer.close()


def test_series_and_matrix_hold_nan_where_nothing_was_measured(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run", 4)
    for i in range(6):
        given_blocks = {"gradient": block("gradient", [0, 2], i)} if i % 2 == 0 else {}
        writer.append(Frame(i, 10 * i, 0.0, {}, given_blocks))
    reader = RunReader(tmp_path / "run")
    matrix = reader.matrix("gradient_std")
    assert matrix.shape == (6, 4)
    assert np.isnan(matrix[1::2]).all()
    assert np.isnan(matrix[:, [1, 3]]).all()
    for i in range(0, 6, 2):
        assert same_bits(matrix[i, [0, 2]], block("gradient", [0, 2], i).quantity("gradient_std"))
    assert same_bits(reader.series("gradient_std", 2), np.ascontiguousarray(matrix[:, 2]))
    assert same_bits(reader.series("gradient_std", "blocks.2.weight"), np.ascontiguousarray(matrix[:, 2]))
    assert same_bits(reader.matrix("gradient_std", [2, 0], slice(2, 5)), np.ascontiguousarray(matrix[2:5][:, [2, 0]]))
    assert np.isnan(reader.matrix("weight_norm")).all()
    assert reader.quantities == list(STREAMS["gradient"].names)
    writer.close()


def test_frames_of_one_step_are_overlaid(tmp_path: Path) -> None:
    """Two optimizers share a step; a third frame measures one layer again."""
    writer = new_writer(tmp_path / "run", 3)
    first, second = block("update", [0, 1], 1), block("update", [2], 2)
    third = block("update", [1, 2], 3)
    third.values[0, 1] = np.nan
    for sequence, (step, one) in enumerate([(0, first), (0, second), (0, third), (1, second)]):
        writer.append(Frame(sequence, step, 0.0, {"loss": float(sequence)}, {"update": one}))
    reader = RunReader(tmp_path / "run")
    expected = [first.values[0, 0], third.values[0, 0], second.values[0, 0]]
    assert reader.matrix("update_norm")[0].tolist() == expected
    assert np.isnan(reader.matrix("update_norm")[1, :2]).all()
    assert reader.steps.tolist() == [0, 1]
    assert reader.scalars("loss").tolist() == [2.0, 3.0]
    assert [one.sequence for one in reader.frames(after_sequence=1)] == [2, 3]
    writer.close()


def test_layer_sets_in_turn_share_two_segments(tmp_path: Path) -> None:
    """Optimizers that step in turn must not begin a file each step."""
    writer = new_writer(tmp_path / "run", 4)
    for i in range(40):
        layers = [0, 1] if i % 2 else [2, 3]
        assert writer.append(Frame(i, i, 0.0, {}, {"gradient": block("gradient", layers, i)}))
    writer.close()
    assert len(list((tmp_path / "run" / "segments").glob("gradient-*"))) == 2
    matrix = RunReader(tmp_path / "run").matrix("gradient_norm")
    assert np.isnan(matrix[::2, :2]).all()
    assert not np.isnan(matrix[::2, 2:]).any()


def test_a_new_layer_set_begins_a_new_segment(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run", 2)
    writer.append(frame(0, 2))
    writer.set_layers(layer_table(5), layer_graph(5))
    writer.append(frame(1, 5))
    writer.close()
    reader = RunReader(tmp_path / "run")
    assert reader.layers.paths == layer_table(5).paths
    assert reader.layers[3].shape == (3, 3)
    assert reader.graph == layer_graph(5)
    assert len(list((tmp_path / "run" / "segments").glob("gradient-*"))) == 2
    assert_same_frame(list(reader.frames())[1], frame(1, 5))


def test_scalars_with_new_names_and_without(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run")
    rows = [{"loss": 1.0}, {"loss": math.nan, "lr": 0.1}, {}, {"lr": 0.2}, {"val": math.inf}]
    for i, scalars in enumerate(rows):
        writer.append(Frame(i, i, 0.0, scalars, {}))
    writer.close()
    reader = RunReader(tmp_path / "run")
    assert reader.scalar_names == ["loss", "lr", "val"]
    np.testing.assert_array_equal(reader.scalars("lr"), [np.nan, 0.1, np.nan, 0.2, np.nan])
    found = [dict(one.scalars) for one in reader.frames()]
    assert repr(found) == repr(rows)  # a loss that is NaN is there; one that was not logged is not
    with pytest.raises(UnknownNameError, match="val"):
        reader.scalars("accuracy")


def test_sketches(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run", 3)
    for i in range(4):
        streams = ("gradient", "sketch") if i in (1, 3) else ("gradient",)
        writer.append(frame(i, 3, streams=streams))
    steps, values = RunReader(tmp_path / "run").sketches("weight_sketch")
    assert steps.tolist() == [1, 3]
    expected = [block("sketch", [0, 1, 2], i).quantity("weight_sketch") for i in (1, 3)]
    assert same_bits(values, np.stack(expected))
    writer.close()


def test_quantities_of_another_version_are_read_as_plain_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = new_writer(tmp_path / "run")
    for i in range(4):
        writer.append(frame(i, 3))
    writer.close()
    known = RunReader(tmp_path / "run")
    here = {name: quantity for name, quantity in QUANTITIES.items() if name != "gradient_norm"}
    monkeypatch.setattr("undertow.store.reader.QUANTITIES", here)
    reader = RunReader(tmp_path / "run")
    assert same_bits(reader.matrix("gradient_norm"), known.matrix("gradient_norm"))
    window = reader.window("gradient_norm", 0, 3, 4)
    assert same_bits(window.mean, known.window("gradient_norm", 0, 3, 4).mean)
    with pytest.raises(UnknownNameError, match="is a sketch"):
        reader.window("weight_sketch", 0, 3, 4)


def test_unknown_names_say_what_there_is(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run")
    writer.append(frame(0, 3))
    reader = RunReader(tmp_path / "run")
    with pytest.raises(UnknownNameError, match="gradient_norm"):
        reader.series("gradient_nrm", 0)
    with pytest.raises(UnknownNameError, match="no layer"):
        reader.series("gradient_norm", 3)
    with pytest.raises(UnknownNameError, match=r"blocks\.9"):
        reader.series("gradient_norm", "blocks.9.weight")
    writer.close()


def test_a_run_before_its_first_frame_counts(tmp_path: Path) -> None:
    """Blocks are written before the scalars that make a frame of them: a reader may come in between."""
    writer = new_writer(tmp_path / "run", LAYERS)
    writer.append(frame(0, LAYERS, streams=("gradient", "sketch")))
    (tmp_path / "run" / "segments" / "scalars-00000.arrows").unlink()
    reader = RunReader(tmp_path / "run")
    for quantity in reader.quantities:
        assert reader.matrix(quantity).shape[0] == 0
    assert "gradient_sketch" in reader.quantities
    writer.close()
