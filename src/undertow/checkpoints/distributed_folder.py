"""Folders of torch's distributed checkpoint: a `.metadata` file, and `.distcp` files of one rank each.

Torch reads `.metadata` with plain `pickle.load`, which runs whatever code the file holds. Here a pickle reader does
it that knows only the dozen names they use and gives inert records for them: nothing is imported or called on behalf
of the file, so it may come from anywhere. The tensors are `torch.save` records, read in the same way.
"""

import io
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from undertow.checkpoints.checkpoint import Checkpoint, Entry, UnreadableCheckpointError, no_plain_floats
from undertow.checkpoints.elements import STORED, Elements
from undertow.checkpoints.naming import arrange, kind_of
from undertow.checkpoints.records import Chunk, TensorPlan, read_plans
from undertow.checkpoints.stored_bytes import open_regular
from undertow.checkpoints.stored_tensor import entry_of_stored
from undertow.checkpoints.torch_file import read_archive
from undertow.checkpoints.torch_pickle import StoredTensor
from undertow.schema.checkpoints import Skipped

METADATA = ".metadata"


def read_distributed(folder: Path) -> Checkpoint:
    plans = read_plans(folder / METADATA)
    for name in sorted({chunk.file for plan in plans for chunk in plan.chunks}):
        if not (folder / name).is_file():
            raise UnreadableCheckpointError(
                f"{folder} misses its part {name!r}", way_out="Copy the whole folder, with the files of every rank"
            )
    paths, skipped, notes = arrange([plan.key for plan in plans])
    found = [_entry(folder, paths[plan.key], plan) for plan in plans if plan.key in paths]
    return Checkpoint.of(str(folder), "torch distributed", [*skipped, *found], notes)


def _entry(folder: Path, path: str, plan: TensorPlan) -> Entry | Skipped:
    if plan.dtype not in STORED:
        return no_plain_floats(path, plan.dtype)
    if sum(prod(chunk.sizes) for chunk in plan.chunks) != prod(plan.shape):
        raise UnreadableCheckpointError(
            f"the parts of tensor {path!r} in {folder} do not make up its shape {list(plan.shape)}",
            way_out="Save the checkpoint again: a rank did not write its part",
        )

    def load() -> Elements:
        if len(plan.chunks) == 1:
            return _chunk(folder, path, plan, plan.chunks[0])
        whole = np.zeros(plan.shape, STORED[plan.dtype])
        for chunk in plan.chunks:
            place = tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes))
            whole[place] = _chunk(folder, path, plan, chunk).raw
        return Elements(whole, plan.dtype)

    return Entry(path, kind_of(path, plan.shape), plan.shape, plan.dtype, load)


def _chunk(folder: Path, path: str, plan: TensorPlan, chunk: Chunk) -> Elements:
    file = folder / chunk.file
    try:
        with open_regular(file) as whole:
            content = read_archive(_Part(whole, chunk.begin, chunk.length), chunk.length)
        places = {key: chunk.begin + place for key, place in content.places.items()}
        part = content.value
        if not isinstance(part, StoredTensor):
            raise ValueError("it holds something else")
        if part.shape != chunk.sizes or part.dtype != plan.dtype:
            said = f"{plan.dtype} {list(chunk.sizes)}"
            raise ValueError(f"it is {part.dtype} {list(part.shape)}, but its metadata says {said}")
        entry = entry_of_stored(path, file, places, part)
        if isinstance(entry, Skipped):
            raise ValueError(entry.reason)
        return entry.load()
    except Exception as problem:  # damaged bytes raise anything at all
        raise UnreadableCheckpointError(
            f"the part of tensor {path!r} in {file} cannot be read: {problem}", way_out="Copy the checkpoint again"
        ) from problem


class _Part(io.RawIOBase):
    """A piece of a file as a file."""

    def __init__(self, file: io.BufferedReader, begin: int, length: int) -> None:
        super().__init__()
        self._file, self._begin, self._length, self._at = file, begin, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self._length - self._at))
        self._file.seek(self._begin + self._at)
        got = self._file.readinto(view[:wanted])
        self._at += got
        return got
