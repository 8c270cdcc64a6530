"""Files that are damaged, cut short, or made to harm: a clear error that names the file or tensor, and nothing run."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.checkpoints.saving import save_distributed, save_sharded, some_tensors, values_of
from tests.checkpoints.splitting import save_in_parts

from undertow.checkpoints import UnreadableCheckpointError, open_checkpoint


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def refuse(path: Path, match: str) -> None:
    with pytest.raises(UnreadableCheckpointError, match=match) as caught:
        values_of(open_checkpoint(path))
    assert caught.value.exit_code == 3


def write_safetensors(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def tensor(shape: Any = (2,), offsets: Any = (0, 8), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "data", "match"),
    [
        (b"{", b"", "no JSON"),
        (b"[1]", b"", "no JSON object"),
        (b"\xff\xfe{}", b"", "no JSON"),
        (b"[" * 200_000, b"", "no JSON"),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": 1}', b"1234", "twice"),
        ({"a": 3}, b"", "'a'"),
        ({"a": tensor(shape=[-2])}, b"12345678", "'a'"),
        ({"a": tensor(shape=[2.0])}, b"12345678", "'a'"),
        ({"a": tensor(shape=[True, 2])}, b"12345678", "'a'"),
        ({"a": tensor(offsets=[0])}, b"12345678", "'a'"),
        ({"a": tensor(offsets=[8, 0])}, b"12345678", "'a'"),
        ({"a": tensor(offsets=[0, 1 << 63])}, b"12345678", "'a'"),
        ({"a": tensor(shape=[1 << 40, 1 << 40])}, b"12345678", "'a'"),
        ({"a": tensor(shape=[1] * 100 + [2])}, b"12345678", "dimensions"),
        ({"a": tensor(dtype="F31")}, b"12345678", "unknown dtype 'F31'"),
        ({"a": tensor(dtype=["F32"])}, b"12345678", "'a'"),
        ({"a": tensor(dtype="BF16")}, b"12345678", "'a'"),
        ({"a": tensor()}, b"1234", "ends inside"),
        ({"a": tensor()}, b"123456789", "belong to no tensor"),
        ({"a": tensor(), "b": tensor(offsets=[4, 12])}, b"123456789012", "'b' overlaps"),
        ({"a": tensor(), "b": tensor(offsets=[12, 20])}, b"1" * 20, "'b' leaves a hole"),
    ],
)
def test_safetensors_headers(tmp_path: Path, header: object, data: bytes, match: str) -> None:
    refuse(write_safetensors(tmp_path / "a.safetensors", header, data), match)


@pytest.mark.parametrize("length", [1 << 62, 100_000_001, 60])
def test_safetensors_header_lengths(tmp_path: Path, length: int) -> None:
    refuse(write_safetensors(tmp_path / "a.safetensors", {}, length=length), "header would be")


def test_a_file_too_short_for_anything(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"1234")
    refuse(tmp_path / "a.safetensors", "only 4 bytes")
    (tmp_path / "a.pt").write_bytes(b"")
    refuse(tmp_path / "a.pt", "no checkpoint that Undertow knows")


def test_a_file_cut_short_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"one": torch.ones(1000), "two": torch.ones(1000)}, path)
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UnreadableCheckpointError, match="ends inside tensor 'two'"):
        values_of(checkpoint)


def test_missing_shards(tmp_path: Path) -> None:
    save_sharded(tmp_path, some_tensors())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    refuse(tmp_path, r"misses 1 of the 2 files .*model-00002-of-00002")


def test_a_shard_of_another_version(tmp_path: Path) -> None:
    save_sharded(tmp_path, some_tensors())
    save_file({"other": torch.ones(2)}, tmp_path / "model-00002-of-00002.safetensors")
    refuse(tmp_path, "does not hold tensor")


def test_what_an_index_does_not_name_is_said(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "one.safetensors")
    (tmp_path / "x.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')
    checkpoint = open_checkpoint(tmp_path)
    assert [entry.path for entry in checkpoint.entries] == ["a"]
    assert [one.path for one in checkpoint.skipped] == ["b"]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/file", "..", "", "."])
def test_an_index_cannot_lead_outside(tmp_path: Path, name: str) -> None:
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    refuse(index, "not in its own folder")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "[" * 100_000])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(text)
    refuse(index, "no index")


def test_the_same_tensor_in_two_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"w": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    refuse(tmp_path, "'w' is in")


def test_folders_without_or_with_too_many(tmp_path: Path) -> None:
    refuse(tmp_path, "holds no checkpoint")
    refuse(tmp_path / "absent", "there is no checkpoint")
    for name in ("a.pt", "b.pt"):
        torch.save({"w": torch.ones(2)}, tmp_path / name)
    refuse(tmp_path, r"several checkpoints.*a\.pt, b\.pt")


@pytest.mark.parametrize("name", ["a.pkl", "a.pt", "a.bin"])
def test_pickles_are_not_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    refuse(tmp_path / name, "is a pickle")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
def test_objects_in_torch_files_are_not_run(tmp_path: Path, zipped: bool) -> None:
    bad = {"w": torch.ones(2), "x": Bomb(tmp_path / "ran")}
    torch.save(bad, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    refuse(tmp_path / "a.pt", "would run code")
    assert not (tmp_path / "ran").exists()


def test_a_whole_module_is_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "a.pt")
    refuse(tmp_path / "a.pt", "would run code.*Linear")


def test_archives_that_are_no_checkpoints(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("hello.txt", "hello")
    refuse(tmp_path / "a.pt", "torch.save did not write")
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        archive.writestr("m/data.pkl", "")
        archive.writestr("m/constants.pkl", "")
    refuse(tmp_path / "b.pt", "TorchScript")


def test_torch_files_cut_short(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1000)}, tmp_path / "a.pt")
    (tmp_path / "a.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:2000])
    refuse(tmp_path / "a.pt", "end is missing")


def test_distributed_metadata_is_not_run(tmp_path: Path) -> None:
    save_distributed(tmp_path / "c", {"w": torch.ones(2)})
    (tmp_path / "c" / ".metadata").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    refuse(tmp_path / "c", r"names pathlib\.Path")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"ctorch\nload\n(S'x'\ntR.",
        b"ctorch.distributed.checkpoint.metadata\nMetadata\n}S'__class__'\nI1\nsb.",
        b"ctorch\nSize\n(N}S'x'\nI1\nstb.",
        b"cbuiltins\neval\n(S'1'\ntR.",
    ],
    ids=["calls", "class state", "tuple state", "eval"],
)
def test_distributed_metadata_can_change_nothing(tmp_path: Path, opcodes: bytes) -> None:
    save_distributed(tmp_path / "c", {"w": torch.ones(2)})
    good = (tmp_path / "c" / ".metadata").read_bytes()
    (tmp_path / "c" / ".metadata").write_bytes(opcodes)
    refuse(tmp_path / "c", "no intact description")
    (tmp_path / "c" / ".metadata").write_bytes(good)
    assert values_of(open_checkpoint(tmp_path / "c"))["w"].tolist() == [1.0, 1.0]


def test_distributed_parts_that_are_missing(tmp_path: Path) -> None:
    save_in_parts(tmp_path, {"w": torch.ones(4, 4)})
    (tmp_path / "__1_0.distcp").unlink()
    refuse(tmp_path, "misses its part '__1_0.distcp'")


def _forget_part(metadata: Any) -> None:
    metadata.state_dict_metadata["w"].chunks.pop()


def _repeat_part(metadata: Any) -> None:
    chunks = metadata.state_dict_metadata["w"].chunks
    chunks[-1] = chunks[0]


def _outside(metadata: Any) -> None:
    metadata.state_dict_metadata["w"].chunks[0].sizes = torch.Size((9, 9))


def _elsewhere(metadata: Any) -> None:
    for place in metadata.storage_data.values():
        place.relative_path = "../../secret"


def _other_type(metadata: Any) -> None:
    metadata.state_dict_metadata["w"].properties.dtype = torch.float64


def _no_place(metadata: Any) -> None:
    metadata.storage_data.popitem()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_forget_part, "'w' in .* do not make up its shape"),
        (_repeat_part, "parts of tensor 'w' overlap"),
        (_outside, "'w' lies outside"),
        (_elsewhere, "outside of its folder"),
        (_other_type, "'w' in .* is float32 .* says float64"),
        (_no_place, "where a part of tensor 'w' is"),
    ],
)
def test_distributed_metadata_that_does_not_fit(tmp_path: Path, change: Callable[[Any], None], match: str) -> None:
    refuse(save_in_parts(tmp_path, {"w": torch.ones(4, 4)}, change), match)


def test_distributed_parts_that_are_damaged(tmp_path: Path) -> None:
    save_in_parts(tmp_path, {"w": torch.ones(4, 4)})
    file = tmp_path / "__0_0.distcp"
    file.write_bytes(bytes(len(file.read_bytes())))
    refuse(tmp_path, "part of tensor 'w' in .*__0_0.distcp cannot be read")


def _spoil(content: bytes, edits: list[tuple[int, int]]) -> bytes:
    spoiled = bytearray(content)
    for place, byte in edits:
        spoiled[place % len(spoiled)] = byte
    return bytes(spoiled)


def complaint(path: Path) -> str:
    """What is said of a checkpoint that cannot be read; its path where it can."""
    try:
        values_of(open_checkpoint(path))
    except UnreadableCheckpointError as problem:
        return str(problem)
    return str(path)


EDITS = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS)
def test_any_damage_to_a_safetensors_header(tmp_path: Path, edits: list[tuple[int, int]]) -> None:
    """Read as something, or refused: nothing else may happen."""
    path = tmp_path / "a.safetensors"
    save_file({"one": torch.ones(2, 3), "two": torch.ones(4).half()}, path)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    path.write_bytes(_spoil(content[:header], edits) + content[header:])
    assert str(path) in complaint(path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS)
def test_any_damage_to_distributed_metadata(tmp_path: Path, edits: list[tuple[int, int]]) -> None:
    folder = tmp_path / "c"
    if not folder.exists():
        save_in_parts(folder, {"w": torch.ones(4, 4)})
        (tmp_path / "good").write_bytes((folder / ".metadata").read_bytes())
    (folder / ".metadata").write_bytes(_spoil((tmp_path / "good").read_bytes(), edits))
    assert str(folder) in complaint(folder)


def test_objects_in_a_torch_file_are_refused_without_torchs_advice(tmp_path: Path) -> None:
    """Torch would have the reader load the file all the same."""
    torch.save({"w": Bomb(tmp_path / "ran")}, tmp_path / "a.pt")
    with pytest.raises(UnreadableCheckpointError, match="holds Python objects besides tensors") as caught:
        open_checkpoint(tmp_path / "a.pt")
    assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_blocked_module_is_no_damaged_file(tmp_path: Path) -> None:
    class System:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    torch.save({"w": System()}, tmp_path / "a.pt")
    with pytest.raises(UnreadableCheckpointError, match=r"holds Python objects besides tensors.*system") as caught:
        open_checkpoint(tmp_path / "a.pt")
    assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "ran").exists()
