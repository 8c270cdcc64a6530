"""Folders of torch's distributed checkpoint: a `.metadata` file, and `.distcp` files of one rank each.

Torch reads `.metadata` with plain `pickle.load`, which runs whatever code the file holds. Here a pickle reader does
it that knows only the dozen names they use and gives inert records for them: nothing is imported or called on behalf
of the file, so it may come from anywhere. The tensors are `torch.save` records, loaded with `weights_only=True`.
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
from undertow.checkpoints.torch_file import check_archive, import_torch
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
    torch = import_torch(file)
    from undertow.checkpoints.torch_tensors import elements_of

    try:
        with file.open("rb") as whole:
            part = _Part(whole, chunk.begin, chunk.length)
            check_archive(part, chunk.length)
            tensor = torch.load(_Part(whole, chunk.begin, chunk.length), map_location="cpu", weights_only=True)
    except Exception as problem:  # torch raises anything at all for damaged bytes
        why = (str(problem).strip().splitlines() or ["no reason given"])[0][:200]
        raise UnreadableCheckpointError(
            f"the part of tensor {path!r} in {file} cannot be read: {why}", way_out="Copy the checkpoint again"
        ) from problem
    if not isinstance(tensor, torch.Tensor):
        raise UnreadableCheckpointError(f"the part of tensor {path!r} in {file} is a {type(tensor).__name__}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tuple(tensor.shape) != chunk.sizes or dtype != plan.dtype:
        raise UnreadableCheckpointError(
            f"the part of tensor {path!r} in {file} is {dtype} {list(tensor.shape)}, "
            f"but its metadata says {plan.dtype} {list(chunk.sizes)}",
            way_out="Save the checkpoint again",
        )
    return elements_of(tensor)


class _Part(io.RawIOBase):
    """A piece of a file as a file: torch reads it straight into the tensor, without a copy of the bytes between."""

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
