"""Files made to hurt: lengths that lie, other schemas, pipes and links. They are named and left out."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pyarrow
import pyarrow.ipc
import pytest
from tests.crash import frame_maker

from undertow.errors import UnreadableRunError
from undertow.store.layout import METADATA_KEY, SegmentFacts, facts_of_block
from undertow.store.reader import RunReader
from undertow.store.segment_catalogue import SEGMENTS_FOLDER
from undertow.store.segment_writer import SegmentWriter
from undertow.store.template import Template

UPDATE = facts_of_block(frame_maker.STREAMS["update"], np.arange(frame_maker.LAYERS, dtype=np.int32))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = frame_maker.new_writer(tmp_path / "run")
    for i in range(5):
        writer.append(frame_maker.make_frame(i))
    writer.close()
    return tmp_path / "run"


def read_beside(folder: Path) -> RunReader:
    """The hostile file must cost neither memory nor the good segment next to it."""
    tracemalloc.start()
    try:
        reader = RunReader(folder)
        assert reader.series("update_norm", 0).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        reader.window("update_norm", 0, 10, 3)
        assert len(list(reader.frames())) == 5
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    return reader


def put(folder: Path, data: bytes, name: str = "update-00009.arrows") -> None:
    (folder / SEGMENTS_FOLDER / name).write_bytes(data)


def valid_bytes(facts: SegmentFacts = UPDATE, sequence: int = 77) -> bytes:
    template = Template(facts)
    template.arrays[0][0] = sequence
    return template.prefix + bytes(template.batch)


def test_a_good_file_in_its_place_is_not_complained_of(folder: Path) -> None:
    put(folder, valid_bytes())
    assert read_beside(folder).problems == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": tuple(range(50))}, "lacks"),
        ({"layers": (-1,)}, "lacks"),
        ({"layers": (10**12,)}, "lacks"),
        ({"stream": "weight"}, "not what its name says"),
        ({"level": 16}, "not what its name says"),
    ],
)
def test_descriptions_that_do_not_fit_the_run(folder: Path, changes: dict[str, object], words: str) -> None:
    put(folder, valid_bytes(msgspec.structs.replace(UPDATE, **changes)))
    (problem,) = read_beside(folder).problems
    assert problem.startswith("segments/update-00009.arrows is left out")
    assert words in problem


def arrow_stream(table: pyarrow.Table, **options: object) -> bytes:
    out = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(out, table.schema, options=pyarrow.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


def described(table: pyarrow.Table, description: str) -> pyarrow.Table:
    return table.replace_schema_metadata({METADATA_KEY: description})


KEY = pyarrow.table({"sequence": [7, 8], "step": [7, 8], "time": [0.0, 1.0]})
NARROW = pyarrow.schema([(name, pyarrow.int8()) for name in KEY.column_names])
PLAIN = '{"stream":"update"}'


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (arrow_stream(KEY), "not of Undertow"),
        (arrow_stream(described(KEY, "{")), "cannot be read"),
        (arrow_stream(described(KEY, "[" * 100_000)), "cannot be read"),
        (arrow_stream(described(KEY, '{"stream":"update","layers":"many"}')), "cannot be read"),
        (arrow_stream(described(KEY, '{"stream":"update","quantities":["update_norm"]}')), "does not fit"),
        (arrow_stream(described(KEY, '{"stream":"update","width":-5}')), "does not fit"),
        (arrow_stream(described(KEY.rename_columns(["a", "b", "c"]), PLAIN)), "columns are not"),
        (arrow_stream(described(KEY.append_column("x", pyarrow.array(["a", "b"])), PLAIN)), "does not fit"),
        (arrow_stream(described(KEY.set_column(0, "sequence", pyarrow.array(["a", "b"])), PLAIN)), "buffers"),
        (arrow_stream(described(KEY.cast(NARROW), PLAIN)), "claims"),
        (arrow_stream(described(KEY, PLAIN), compression="zstd"), "compressed"),
        (b"PAR1" + bytes(1000), "no Arrow message"),
    ],
)  # fmt: skip
def test_other_arrow_streams(folder: Path, data: bytes, words: str) -> None:
    put(folder, data)
    (problem,) = read_beside(folder).problems
    assert words in problem


@pytest.mark.parametrize("number", [2**62, -1, -(2**63), 2**40, 2**31])
def test_every_number_of_the_batch_header_replaced(folder: Path, number: int) -> None:
    data = bytearray(valid_bytes())
    template = Template(UPDATE)
    start = len(template.prefix)
    end = start + len(template.batch) - sum(array.nbytes for array in template.arrays)
    for place in range(start + 8, end - 8, 8):
        damaged = bytearray(data)
        damaged[place : place + 8] = struct.pack("<q", number)
        put(folder, bytes(damaged))
        reader = RunReader(folder)
        assert reader.series("update_norm", 0).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_claim_of_a_million_million_rows(folder: Path) -> None:
    data = valid_bytes()
    one = struct.pack("<qq", 1, 0)  # length and null count of a column
    put(folder, data.replace(one, struct.pack("<qq", 10**12, 0)))
    read_beside(folder)


def test_links_pipes_and_folders(folder: Path) -> None:
    segments = folder / SEGMENTS_FOLDER
    os.mkfifo(segments / "update-00010.arrows")
    (segments / "update-00011.arrows").mkdir()
    (segments / "update-00012.arrows").symlink_to("/dev/zero")
    (segments / "update-00013.arrows").symlink_to("nowhere")
    (segments / "update-99999999999999999999999.arrows").write_bytes(b"x")
    (segments / "notes.txt").write_text("mine")
    problems = read_beside(folder).problems
    assert len(problems) == 3
    assert all("update-0001" in problem for problem in problems)


@pytest.mark.parametrize("name", ["run.json", "layers.json"])
def test_documents_that_are_pipes(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UnreadableRunError, match=name):
        RunReader(folder)


def test_a_journal_that_is_a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "events.jsonl")
    reader = RunReader(folder)
    assert reader.events() == []
    assert reader.problems == ["events.jsonl: 1 damaged lines are left out"]


def test_sequences_that_repeat_or_run_backwards(folder: Path) -> None:
    template = Template(UPDATE)
    writer = SegmentWriter(folder / SEGMENTS_FOLDER / "update-00009.arrows", template)
    for sequence in (3, 3, 1, -5, 2**62, 4):
        template.arrays[0][0] = sequence
        writer.append()
    writer.close()
    reader = RunReader(folder)
    assert len(reader.series("update_norm", 0)) == 5
    assert len(list(reader.frames())) == 5
    assert any("damaged rows" in problem for problem in reader.problems)


def test_layers_that_are_no_layers(folder: Path) -> None:
    for entry in ('{"path": 5}', "7", '{"path": "a", "id": 4}', '{"path": "a", "id": 0, "kind": "?"}', "[]"):
        (folder / "layers.json").write_text(f'{{"format": 1, "layers": [{entry}], "graph": {{}}}}')
        with pytest.raises(UnreadableRunError, match=r"layers\.json is damaged"):
            RunReader(folder)
