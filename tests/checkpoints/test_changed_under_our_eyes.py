"""A checkpoint that is cut short, deleted or replaced after it was opened: words, never a dead process."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests import limited
from tests.checkpoints.saving import save_distributed, values_of

from undertow.checkpoints import UnreadableCheckpointError, open_checkpoint

TENSORS = {"one": torch.ones(300, 1000), "two": torch.full((300, 1000), 2.0)}


def _torch(folder: Path) -> Path:
    torch.save(TENSORS, folder / "a.pt")
    return folder / "a.pt"


def _legacy(folder: Path) -> Path:
    torch.save(TENSORS, folder / "a.pt", _use_new_zipfile_serialization=False)
    return folder / "a.pt"


def _safetensors(folder: Path) -> Path:
    save_file(TENSORS, folder / "a.safetensors")
    return folder / "a.safetensors"


def _distributed(folder: Path) -> Path:
    return save_distributed(folder / "a", TENSORS)


def _index(folder: Path) -> Path:
    save_file(TENSORS, folder / "a.safetensors")
    names = ", ".join(f'"{name}": "a.safetensors"' for name in TENSORS)
    (folder / "a.safetensors.index.json").write_text(f'{{"weight_map": {{{names}}}}}')
    return folder / "a.safetensors.index.json"


FORMATS = {"torch": _torch, "before 1.6": _legacy, "safetensors": _safetensors, "distributed": _distributed}


def _socket(path: Path) -> None:
    # The address of a socket may be no longer than this.
    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as one:
        one.bind(f"{short}/s")
        os.replace(f"{short}/s", path)


def _unreadable(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0)


REPLACEMENTS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": _socket,
    "no end": lambda path: path.symlink_to("/dev/zero"),
    "a loop": lambda path: path.symlink_to(path.name),
    "an empty file": lambda path: path.write_bytes(b""),
    "an unreadable file": _unreadable,
}


def data_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(one for one in path.iterdir() if one.suffix == ".distcp")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("kind", list(FORMATS))
def test_cut_short(tmp_path: Path, kind: str, share: float) -> None:
    """A map of the file, as it once was, would end the process here."""
    path = FORMATS[kind](tmp_path)
    checkpoint = open_checkpoint(path)
    for file in data_files(path):
        os.truncate(file, int(file.stat().st_size * share))
    with pytest.raises(UnreadableCheckpointError, match="a"):
        values_of(checkpoint)


@pytest.mark.parametrize("replacement", list(REPLACEMENTS))
@pytest.mark.parametrize("kind", list(FORMATS))
def test_replaced(tmp_path: Path, kind: str, replacement: str) -> None:
    path = FORMATS[kind](tmp_path)
    checkpoint = open_checkpoint(path)
    for file in data_files(path):
        file.unlink()
        REPLACEMENTS[replacement](file)
    with pytest.raises(UnreadableCheckpointError):
        values_of(checkpoint)


WEIGH_ALL = """
import sys, time
from pathlib import Path
from undertow.cli import main

for path in Path(sys.argv[1]).read_text().splitlines():
    began = time.monotonic()
    code = main(["weights", path])
    print(f"{path}: {code} after {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    assert code in (2, 3), path
"""


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    """Every file of every format replaced by everything that is no file."""
    asked: list[Path] = []
    for kind, save in {**FORMATS, "index": _index}.items():
        for name, replace in REPLACEMENTS.items():
            folder = tmp_path / f"{kind} {name}"
            folder.mkdir()
            path = save(folder)
            shutil.copytree(folder, whole := tmp_path / f"{kind} {name} whole")
            for file in [one for one in whole.rglob("*") if one.is_file()]:
                one = file.relative_to(whole)
                (folder / one).unlink()
                replace(folder / one)
            asked.append(path)
    (tmp_path / "asked").write_text("\n".join(map(str, asked)))
    ended = limited.python("-c", WEIGH_ALL, tmp_path / "asked", patience=100)
    assert ended.code == 0, ended.err
    assert "internal error" not in ended.err
    assert ended.memory < limited.GIGABYTE
