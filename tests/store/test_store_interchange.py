"""Other programs open our segments as they are, and our tables as they like them."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow.ipc
import pyarrow.parquet
import pytest
from tests.store.small_runs import block, frame, new_writer

from undertow.errors import UndertowError, UnknownNameError
from undertow.schema import Frame
from undertow.store import exports
from undertow.store.reader import RunReader


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Of a run that was never closed: no end marker."""
    writer = new_writer(tmp_path / "run")
    for i in range(10):
        writer.append(frame(i, 3, streams=("gradient", "update")))
    return tmp_path / "run" / "segments" / "gradient-00000.arrows"


def check_table(table: Any) -> None:
    assert table["sequence"].to_pylist() == list(range(10))
    for i in range(10):
        expected = block("gradient", [0, 1, 2], i)
        assert table["gradient_norm"][i].as_py() == expected.values[0].tolist()
        assert table["stepped_gradient_nonfinite_count"][i].as_py() == expected.values[-1].tolist()


def test_pyarrow_opens_a_live_segment(segment: Path) -> None:
    check_table(pyarrow.ipc.open_stream(segment.read_bytes()).read_all())


def test_polars_opens_a_live_segment(segment: Path) -> None:
    check_table(polars.read_ipc_stream(segment).to_arrow())


def test_pyarrow_reads_a_torn_segment_up_to_the_tear(segment: Path) -> None:
    reader = pyarrow.ipc.open_stream(segment.read_bytes()[:-100])
    rows = [reader.read_next_batch().num_rows for _ in range(9)]
    assert sum(rows) == 9
    with pytest.raises((OSError, pyarrow.ArrowInvalid)):
        reader.read_next_batch()


def test_all_files_of_a_closed_and_thinned_run_open(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run", 20, disk_budget=1_000_000)
    for i in range(600):
        writer.append(frame(i, 20))
    writer.close()
    files = list((tmp_path / "run").rglob("*.arrows"))
    assert {path.parent.name for path in files} == {"segments", "zoom"}
    for path in files:
        table = pyarrow.ipc.open_stream(path.read_bytes()).read_all()
        table.validate(full=True)
        assert table.num_rows > 0
        assert polars.read_ipc_stream(path).height == table.num_rows
        assert json.loads(table.schema.metadata[b"undertow"])["stream"] in ("gradient", "scalars")


@pytest.fixture
def run(tmp_path: Path) -> RunReader:
    writer = new_writer(tmp_path / "run", 3)
    for i in range(5):
        values = block("update", [0, 2], i)
        values.values[0, 0] = math.inf
        values.values[1, 0] = math.nan
        blocks = {"update": values} if i != 2 else {}
        writer.append(Frame(i, 10 * i, 0.0, {"loss": math.nan if i == 3 else 0.1 * i}, blocks))
    writer.close()
    return RunReader(tmp_path / "run")


def expected_rows() -> list[tuple[int, str, np.float32]]:
    return [
        (10 * i, f"blocks.{layer}.weight", block("update", [0, 2], i).values[2, place])
        for i in (0, 1, 3, 4)
        for place, layer in enumerate((0, 2))
    ]


def test_csv(run: RunReader, tmp_path: Path) -> None:
    exports.export_csv(run, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(r["step"]), r["layer"], np.float32(r["update_cosine"])) for r in rows] == expected_rows()
    assert rows[0]["update_norm"] == "inf"
    assert rows[0]["update_ratio"] == ""


def test_json_is_strict(run: RunReader, tmp_path: Path) -> None:
    exports.export_json(run, tmp_path / "out.json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    table = json.loads((tmp_path / "out.json").read_text(), parse_constant=refuse)
    rows = table["rows"]
    assert [(r["step"], r["layer"], np.float32(r["update_cosine"])) for r in rows] == expected_rows()
    assert rows[0]["update_norm"] is None
    assert rows[0]["nonfinite"] == {"update_norm": "inf"}
    assert "nonfinite" not in rows[1]
    assert table["scalars"]["loss"][3] is None
    assert table["steps"] == [0, 10, 20, 30, 40]
    assert table["facts"]["name"] == "test"


def test_parquet_arrow_and_pandas_agree(run: RunReader, tmp_path: Path) -> None:
    exports.export_parquet(run, tmp_path / "out.parquet")
    stored = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    table = exports.to_arrow(run)
    frame = exports.to_pandas(run)
    assert stored.to_pylist() == table.to_pylist()
    found = [(row["step"], row["layer"], np.float32(row["update_cosine"])) for row in table.to_pylist()]
    assert found == expected_rows()
    assert table.to_pylist()[0]["update_ratio"] is None
    assert list(zip(frame["step"], frame["layer"].astype(str), frame["update_cosine"])) == expected_rows()


def test_some_layers_and_quantities(run: RunReader, tmp_path: Path) -> None:
    exports.export_csv(run, tmp_path / "out.csv", layers=["blocks.2.weight"], quantities=["update_cosine"])
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "step,layer,update_cosine"
    assert len(lines) == 5
    assert all(",blocks.2.weight," in line for line in lines[1:])
    with pytest.raises(UnknownNameError, match="update_cosine"):
        exports.to_arrow(run, quantities=["update_sine"])
    with pytest.raises(UnknownNameError, match=r"blocks\.7"):
        exports.to_pandas(run, layers=["blocks.7.weight"])


def test_an_empty_run_gives_empty_tables(tmp_path: Path) -> None:
    new_writer(tmp_path / "run").close()
    reader = RunReader(tmp_path / "run")
    assert exports.to_arrow(reader).num_rows == 0
    assert len(exports.to_pandas(reader)) == 0
    exports.export_json(reader, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == []


def test_portions_join_without_a_seam(run: RunReader, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = exports.to_arrow(run).to_pylist()
    monkeypatch.setattr(exports, "_NUMBERS_AT_ONCE", 1)
    assert exports.to_arrow(run).to_pylist() == whole


def test_a_missing_package_is_named_with_its_extra(run: RunReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(UndertowError, match=r"pandas.*undertow\[tables\]"):
        exports.to_pandas(run)
