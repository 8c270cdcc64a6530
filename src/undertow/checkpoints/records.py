"""The `.metadata` of a distributed checkpoint, without torch and without running anything it says."""

import io
import itertools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

from undertow.checkpoints.checkpoint import UnreadableCheckpointError
from undertow.checkpoints.pickle_bounds import LARGEST_PICKLE, check_pickle
from undertow.checkpoints.stored_bytes import open_regular

_ROOM = "torch.distributed.checkpoint"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A rectangle of a tensor, and the bytes of a file that hold it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int


@dataclass(frozen=True, slots=True)
class TensorPlan:
    key: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[Chunk, ...]


class Record:
    """Takes the place of a class that a pickle names: keeps the state it is given and does nothing."""

    state: Any = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        self.state = state

    def field(self, name: str) -> Any:
        return cast(dict[str, Any], self.state).get(name) if isinstance(self.state, dict) else None


class _Tensors(Record):
    pass


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    (f"{_ROOM}.metadata", "Metadata"): Record,
    (f"{_ROOM}.metadata", "TensorStorageMetadata"): _Tensors,
    (f"{_ROOM}.metadata", "BytesStorageMetadata"): Record,
    (f"{_ROOM}.metadata", "ChunkStorageMetadata"): Record,
    (f"{_ROOM}.metadata", "TensorProperties"): Record,
    (f"{_ROOM}.metadata", "_MEM_FORMAT_ENCODING"): Record,
    (f"{_ROOM}.metadata", "MetadataIndex"): Record,
    (f"{_ROOM}.metadata", "StorageMeta"): Record,
    (f"{_ROOM}.filesystem", "_StorageInfo"): Record,
    # `tuple` and `dict` are built in: a pickle can make them, and cannot change them.
    ("collections", "OrderedDict"): dict,
    ("torch", "Size"): tuple,
    ("torch.serialization", "_get_layout"): Record,
    ("pathlib", "PosixPath"): Record,
    ("pathlib", "WindowsPath"): Record,
    ("pathlib", "PurePosixPath"): Record,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        known = _KNOWN.get((module_name, global_name))
        if known is not None:
            return known
        if module_name == "torch" and "." not in global_name:
            return f"torch.{global_name}"  # a dtype: only its name is wanted, and text cannot be called
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, which has no place there")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside")


def read_plans(path: Path) -> list[TensorPlan]:
    """All tensors of a distributed checkpoint, and where their parts lie."""
    with open_regular(path) as file:
        data = file.read(LARGEST_PICKLE + 1)
    if len(data) > LARGEST_PICKLE:
        raise _damaged(path, f"it has more than {LARGEST_PICKLE:,} bytes")
    try:
        check_pickle(data)
        metadata = _Reader(io.BytesIO(data)).load()
    except Exception as problem:  # a damaged pickle raises anything at all
        raise _damaged(path, str(problem) or type(problem).__name__) from problem
    try:
        return _plans(path, metadata)
    except (AttributeError, TypeError, KeyError, ValueError, IndexError, RecursionError) as problem:
        raise _damaged(path, f"its records are not as expected ({problem})") from problem


def _plans(path: Path, metadata: Record) -> list[TensorPlan]:
    places = _places(metadata.field("storage_data"))
    keys: dict[str, Any] = metadata.field("planner_data") or {}
    plans: list[TensorPlan] = []
    for name, record in cast(dict[str, Record], metadata.field("state_dict_metadata")).items():
        if not isinstance(record, _Tensors):
            continue  # a number or text of the training loop
        dtype = str(record.field("properties").state[0]).removeprefix("torch.")
        shape = _whole(record.field("size"))
        chunks: list[Chunk] = []
        for part in record.field("chunks"):
            offsets, sizes = _whole(part.field("offsets")), _whole(part.field("sizes"))
            if len(offsets) != len(shape) or any(o + s > n for o, s, n in zip(offsets, sizes, shape, strict=True)):
                raise _damaged(path, f"a part of tensor {name!r} lies outside of its shape {list(shape)}")
            place = places.get((name, offsets))
            if place is None:
                raise _damaged(path, f"it does not say where a part of tensor {name!r} is")
            if place.field("transform_descriptors"):
                raise UnreadableCheckpointError(
                    f"tensor {name!r} of {path.parent} was written through a transform (compression)",
                    way_out="Save the checkpoint without extensions",
                )
            file = str(place.field("relative_path"))
            if Path(file).is_absolute() or ".." in Path(file).parts:
                raise _damaged(path, f"it points outside of its folder, to {file!r}")
            begin, length = _whole((place.field("offset"), place.field("length")))
            if prod(sizes):
                chunks.append(Chunk(offsets, sizes, file, begin, length))
        _check_apart(path, name, chunks)
        plans.append(TensorPlan(tuple(map(str, keys.get(name) or (name,))), shape, dtype, tuple(chunks)))
    return plans


def _places(storage: dict[Record, Record]) -> dict[tuple[str, tuple[int, ...]], Record]:
    table: dict[tuple[str, tuple[int, ...]], Record] = {}
    for index, place in storage.items():
        table[str(index.field("fqn")), tuple(index.field("offset") or ())] = place
    return table


def _whole(values: Any) -> tuple[int, ...]:
    numbers = tuple(values)
    if not all(type(one) is int and 0 <= one < 1 << 62 for one in numbers):
        raise ValueError(f"{numbers} are no sizes")
    return numbers


def _check_apart(path: Path, name: str, chunks: list[Chunk]) -> None:
    """Parts that overlap would hide that others are missing. Almost always they are cut along one dimension."""
    ordered = sorted(chunks, key=lambda chunk: chunk.offsets)
    for a, b in itertools.pairwise(ordered):
        if all(p < q + t and q < p + s for p, s, q, t in zip(a.offsets, a.sizes, b.offsets, b.sizes)):
            raise _damaged(path, f"two parts of tensor {name!r} overlap")


def _damaged(path: Path, why: str) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"{path} is no intact description of a distributed checkpoint: {why}",
        way_out="Copy the whole folder again, or convert it with torch.distributed.checkpoint.format_utils",
    )
