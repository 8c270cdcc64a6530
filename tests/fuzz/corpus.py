"""Good files of every format that Undertow reads, small, and made anew each time: what the fuzzer spoils."""

from __future__ import annotations

import io
import struct
import tempfile
from functools import cache
from pathlib import Path

import torch
from hypothesis import strategies as st
from tests.checkpoints.bombs import NESTED, TUPLES
from tests.checkpoints.splitting import save_in_parts
from tests.crash.hostile_runs import make_run

TENSORS = {"layer.weight": torch.ones(2, 3), "layer.bias": torch.ones(4).half()}
PYPROJECT = b'[tool.undertow]\nevery = 2\nbudget = "1%"\nignore = ["head.*"]\nsinks = []\n[tool.other]\na = 1\n'
ADDRESSES = (b"s3://bucket/run", b"memory://a/b", b"file:///tmp/run", b"C:/runs", b"gs:/b//c/")
# Numbers at the edges of what lengths and offsets are stored in.
EDGES = [0, 1, 7, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1]


@cache
def run_files() -> dict[str, bytes]:
    """A whole run by the names of its files."""
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder) / "run", frames=20)
        return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


@cache
def safetensors() -> bytes:
    from safetensors.torch import save

    return save(TENSORS)


@cache
def torch_files() -> tuple[bytes, ...]:
    files: list[bytes] = []
    for new in (True, False):
        out = io.BytesIO()
        torch.save({"model": TENSORS, "epoch": 3, "list": [1, (2.0, None)]}, out, _use_new_zipfile_serialization=new)
        files.append(out.getvalue())
    return tuple(files)


@cache
def distributed() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_in_parts(folder, {"w": torch.ones(4, 4)})
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@cache
def pickles() -> tuple[bytes, ...]:
    return distributed()[".metadata"], NESTED + b".", TUPLES + b"."


def _change(data: bytes, change: tuple[str, float, int, bytes]) -> bytes:
    kind, where, number, fill = change
    at = int(where * len(data))
    if kind == "cut":
        return data[:at]
    if kind == "insert":
        return data[:at] + fill + data[at:]
    if kind == "drop":
        return data[:at] + data[at + number % 64 :]
    if kind == "repeat":
        return data[:at] + data[at : at + 40] * (1 + number % 5) + data[at:]
    if kind == "flip" and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ (1 << number % 8)]) + data[at + 1 :]
    size = (1, 2, 4, 8)[number % 4]
    edge = EDGES[number % len(EDGES)] & ((1 << 8 * size) - 1)
    return data[:at] + struct.pack("<Q", edge)[:size] + data[at + size :]


_CHANGE = st.tuples(
    st.sampled_from(["flip", "flip", "number", "number", "cut", "insert", "drop", "repeat"]),
    st.floats(0, 1) | st.floats(0, 0.1),
    st.integers(0, 255),
    st.binary(max_size=12),
)


def spoiled(*good: bytes) -> st.SearchStrategy[bytes]:
    """One of these with a few changes; now and then anything at all."""

    def apply(start: bytes, changes: list[tuple[str, float, int, bytes]]) -> bytes:
        for change in changes:
            start = _change(start, change)
        return start

    changes = st.lists(_CHANGE, min_size=1, max_size=6)
    return st.builds(apply, st.sampled_from(good), changes) | st.binary(max_size=200)
