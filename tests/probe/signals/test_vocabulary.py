"""Runs written before a quantity existed still open, and lack only that quantity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.store.small_runs import frame, new_writer

from undertow.run import open_run
from undertow.schema import STREAMS
from undertow.store.reader import RunReader

FIRST_NEW = {"weight": "weight_row_spread", "activation": "activation_training"}


@pytest.fixture
def old_run(tmp_path):
    """A run with the weight and activation streams as they were before there were signals."""
    with pytest.MonkeyPatch.context() as patch:
        for name, first_new in FIRST_NEW.items():
            stream = STREAMS[name]
            kept = stream.quantities[: stream.names.index(first_new)]
            patch.setitem(STREAMS, name, replace(stream, quantities=kept))
        writer = new_writer(tmp_path / "old", 3)
        frames = [frame(i, 3, streams=("weight", "activation")) for i in range(4)]
        writer.append_many(frames)
        writer.close()
    return tmp_path / "old", frames


def test_old_runs_open(old_run):
    folder, frames = old_run
    found = list(RunReader(folder).frames())
    assert len(found) == 4
    for one, written in zip(found, frames):
        for name, first_new in FIRST_NEW.items():
            old_names = STREAMS[name].names[: STREAMS[name].names.index(first_new)]
            values = one.blocks[name].values
            assert values.shape == (len(STREAMS[name].names), 3)
            np.testing.assert_array_equal(values[: len(old_names)], written.blocks[name].values)
            assert np.isnan(values[len(old_names) :]).all()


def test_new_quantities_of_an_old_run_are_absent(old_run):
    folder, frames = old_run
    run = open_run(folder)
    assert not {"weight_row_spread", "activation_training", "optimizer_rate"} & set(run.quantities)
    expected = [one.blocks["weight"].values[0] for one in frames]
    np.testing.assert_array_equal(run.matrix("weight_norm"), expected)


def test_an_old_run_can_be_resumed(old_run):
    folder, _ = old_run
    writer = new_writer(folder, 3, resume=True)
    writer.append(frame(4, 3, streams=("weight", "optimizer")))
    writer.close()
    run = open_run(folder)
    spread = run.matrix("weight_row_spread")
    assert np.isnan(spread[:4]).all()
    assert np.isfinite(spread[4]).all()
    assert np.isfinite(run.matrix("optimizer_rate")[4]).all()
