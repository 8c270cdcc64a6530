"""Checkpoints made to cost more time or memory than anybody has. Every one is small, or a hole in a file."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

NESTED = b"\x80\x02]q\x00" + b"".join(
    b"]q" + bytes([i]) + b"(h" + bytes([i - 1]) + b"h" + bytes([i - 1]) + b"e" for i in range(1, 120)
)
TUPLES = b"\x80\x02)q\x00" + b"".join(
    b"h" + bytes([i - 1]) + b"h" + bytes([i - 1]) + b"\x86q" + bytes([i]) for i in range(1, 60)
)
DICT_OF_TUPLES = TUPLES.replace(b"\x80\x02", b"\x80\x02}", 1) + b"K\x01s."


LONG = b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b"."


def archive(path: Path, data: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("archive/data.pkl", data)
        file.writestr("archive/byteorder", b"little")
        file.writestr("archive/version", b"3\n")


def safetensors(path: Path, header: object) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def _empty_tensors(path: Path) -> None:
    safetensors(path, {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(900_000)})


def _legacy(path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    path.write_bytes(data[:15] + pickle.dumps(1001, 2) + pickle.dumps({}, 2) + NESTED + b"." + pickle.dumps([], 2))


def _hole(path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, path, _use_new_zipfile_serialization=False)
    os.truncate(path, 60 * 10**9)


def _expanded(path: Path) -> None:
    torch.save({"a": torch.zeros(1).expand(1 << 40), "b": torch.ones(2, 2)}, path)


def _huge_tensor(path: Path) -> None:
    size = 60 * 10**9
    safetensors(path, {"a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}})
    os.truncate(path, path.stat().st_size + size)


BOMBS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "lists in lists": ("a.pt", lambda path: archive(path, NESTED + b".")),
    "lists in lists, legacy": ("a.pt", _legacy),
    "tuples as a key": ("a.pt", lambda path: archive(path, DICT_OF_TUPLES)),
    "tuples as a key of metadata": (".metadata", lambda path: path.write_bytes(DICT_OF_TUPLES)),
    "nine bytes of metadata": (".metadata", lambda path: path.write_bytes(b"\x80\x02]r\xff\xff\xff\x1f.")),
    "a length in metadata": (".metadata", lambda path: path.write_bytes(LONG)),
    "a packed pickle": ("a.pt", lambda path: archive(path, b"\x80\x02" + b"]" * 10**8, zipfile.ZIP_DEFLATED)),
    "many lists": ("a.pt", lambda path: archive(path, b"\x80\x02" + b"]" * 30_000_000 + b".")),
    "many lists in metadata": (".metadata", lambda path: path.write_bytes(b"\x80\x02" + b"]" * 30_000_000 + b".")),
    "900,000 empty tensors": ("a.safetensors", _empty_tensors),
    "a tensor of 60 GB": ("a.safetensors", _huge_tensor),
    "a shape beyond counting": (
        "a.safetensors",
        lambda path: safetensors(path, {"a": {"dtype": "F32", "shape": [0, 2**61], "data_offsets": [0, 0]}}),
    ),
    "a shape of torch": ("a.pt", lambda path: torch.save({"a": torch.zeros(0, 2**61)}, path)),
    "one number a trillion times": ("a.pt", _expanded),
    "a hole of 60 GB": ("a.pt", _hole),
    "metadata of 60 GB": (".metadata", lambda path: (path.touch(), os.truncate(path, 60 * 10**9))),
}  # fmt: skip
