"""Our own reader of torch files gives what torch gives, bit for bit, and needs no torch for it."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
import zlib
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoints.saving import some_tensors, values_of

from undertow.checkpoints import UnreadableCheckpointError, open_checkpoint

BASE = torch.arange(60.0).reshape(5, 12)


def state() -> dict[str, Any]:
    """Whatever people put into a checkpoint beside plain tensors."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    tied = torch.nn.Parameter(torch.randn(4, 4))
    return {
        "saved": model.state_dict(),  # has `_metadata`
        "parameters": OrderedDict(model.named_parameters()),
        "views": {"t": BASE.t(), "s": BASE[1:, ::3], "e": BASE[0, :1].expand(7), "n": BASE.permute(1, 0)[2]},
        "tied": [tied, tied],
        "scalars": (torch.tensor(3.0), torch.zeros(0, 5), torch.zeros(2, 0)),
        "odd": {
            "sparse": torch.eye(3).to_sparse(),
            "complex": torch.ones(2, dtype=torch.complex64),
            "bool": torch.ones(2, dtype=torch.bool),
            "meta": torch.empty(3, device="meta"),
        },
        "plain": {"count": Counter("abc"), "set": {1, 2}, "bytes": b"abc", "array": bytearray(b"x"), "z": 1 + 2j},
        "types": [torch.float32, torch.device("cpu"), torch.Size([1, 2]), torch.strided],
    }


def plain_tensors(value: Any, key: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        is_plain = value.layout is torch.strided and value.is_floating_point() and not value.is_meta
        return {".".join(key): value.detach()} if is_plain else {}
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return {name: one for place, inner in pairs for name, one in plain_tensors(inner, (*key, str(place))).items()}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
def test_everything_that_torch_reads(tmp_path: Path, zipped: bool) -> None:
    saved = state()
    if not zipped:
        del saved["odd"]["meta"]  # torch cannot write it
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    expected = plain_tensors(torch.load(tmp_path / "a.pt", weights_only=True))
    found = values_of(checkpoint)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor.double().numpy(), err_msg=name)
    reasons = {one.path: one.reason for one in checkpoint.skipped}
    assert {f"odd.{name}" for name in saved["odd"]} <= reasons.keys()
    assert "sparse" in reasons["odd.sparse"]
    places = {entry.path: entry.storage for entry in checkpoint.entries}
    assert places["tied.0"] == places["tied.1"]
    assert places["saved.0.weight"] == places["parameters.0.weight"]
    assert places["views.t"] != places["views.s"]


def test_it_needs_no_torch(tmp_path: Path) -> None:
    torch.save(some_tensors(), tmp_path / "a.pt")
    code = "import sys, undertow; r = undertow.weights(sys.argv[1]); print(len(r.tensors), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.pt"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["10", "False"]


def test_a_tensor_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4)}, tmp_path / "a.pt")
    data = (tmp_path / "a.pt").read_bytes()
    shape = b"K\x04\x85"  # the tuple (4,)
    assert data.count(shape) == 1
    damaged = data.replace(shape, b"K\x05\x85")
    checked = damaged.replace(_checksum(data, b"data.pkl"), _checksum(damaged, b"data.pkl", fresh=True))
    (tmp_path / "a.pt").write_bytes(checked)
    with pytest.raises(UnreadableCheckpointError, match="'w' lies outside of its storage"):
        open_checkpoint(tmp_path / "a.pt")


def _checksum(archive: bytes, name: bytes, *, fresh: bool = False) -> bytes:
    """Of a part of a zip archive: as it is written there, or as it should be."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        (one,) = [info for info in opened.infolist() if info.filename.endswith(name.decode())]
    if not fresh:
        return struct.pack("<I", one.CRC)
    begin = archive.index(b"\x80\x02}", one.header_offset)
    return struct.pack("<I", zlib.crc32(archive[begin : begin + one.file_size]))


def test_numbers_are_names_as_far_as_they_are_short(tmp_path: Path) -> None:
    """Python refuses to write out an integer of very many digits."""
    torch.save({7: BASE, -(2**63) + 1: BASE, 2**63: BASE, 10**5000: BASE}, tmp_path / "model.pt")
    names = [entry.path for entry in open_checkpoint(tmp_path / "model.pt").entries]
    assert names == ["7", "-9223372036854775807", "<int 2>", "<int 3>"]
