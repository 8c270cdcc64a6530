"""Files of `torch.save`, read without torch: tensors and plain containers, no code, one tensor at a time."""

import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from undertow.checkpoints.checkpoint import Checkpoint, UnreadableCheckpointError
from undertow.checkpoints.naming import arrange
from undertow.checkpoints.pickle_bounds import LARGEST_PICKLE, PickleBombError, check_pickle
from undertow.checkpoints.stored_bytes import open_regular, size_of
from undertow.checkpoints.stored_tensor import entry_of_stored
from undertow.checkpoints.torch_pickle import ForeignObjectError, OddTensor, Storage, StoredTensor, read_pickle

# How torch's own format before 1.6 begins; any other pickle is refused unread.
_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_DEEPEST = 32
MOST_VALUES = 1_000_000  # in all containers; one list may stand in many, so a small file can hold any number
_LARGEST_DIRECTORY = 1 << 24  # bytes of a zip archive's table of contents: 150,000 tensors


@dataclass(frozen=True, slots=True)
class Content:
    """What was saved, with descriptions in place of tensors, and where the bytes of each storage begin."""

    value: Any
    places: dict[str, int]


def read_torch_file(path: Path) -> Checkpoint:
    with open_regular(path) as file:
        content = _content(path, file)
    found: dict[tuple[str, ...], StoredTensor | OddTensor] = {}
    for number, (key, value) in enumerate(_values(content.value, ())):
        if value is not None:
            found[key] = value
        if number > MOST_VALUES:
            raise damaged(path, f"it holds more than {MOST_VALUES:,} values within each other")
    paths, skipped, notes = arrange(list(found))
    entries = [entry_of_stored(paths[key], path, content.places, found[key]) for key in paths]
    return Checkpoint.of(str(path), "torch", [*skipped, *entries], notes)


def _content(path: Path, file: BufferedReader) -> Content:
    """Refuses what torch did not write before anything is unpickled."""
    first = file.read(len(_LEGACY))
    try:
        if first[:2] == b"PK":
            return read_archive(file, size_of(file))
        if first == _LEGACY:
            return _read_legacy(file)
    except ForeignObjectError as problem:
        raise UnreadableCheckpointError(
            f"{path} holds Python objects besides tensors, and loading them would run code: {problem}",
            way_out="Save only the state: torch.save(model.state_dict(), …)",
        ) from problem
    except zipfile.BadZipFile as problem:
        raise damaged(path, f"its end is missing or damaged ({problem})") from problem
    except UnreadableCheckpointError as problem:
        raise UnreadableCheckpointError(
            f"{path} cannot be read: {problem.message}", way_out=problem.way_out
        ) from problem
    except Exception as problem:  # damaged bytes raise anything at all
        raise damaged(path, str(problem) or type(problem).__name__) from problem
    if first[:1] == b"\x80":
        raise UnreadableCheckpointError(
            f"{path} is a pickle: loading it would run whatever code it holds, so Undertow does not",
            way_out="Save the tensors with torch.save(model.state_dict(), …) or as safetensors",
        )
    raise UnreadableCheckpointError(
        f"{path} is no checkpoint that Undertow knows",
        way_out="Give a .safetensors file, a file of torch.save, or a folder of a sharded or distributed checkpoint",
    )


def read_archive(file: Any, size: int) -> Content:
    """A zip archive of `torch.save`, which packs nothing and writes no byte twice."""
    file.seek(max(0, size - (1 << 17)))
    end = file.read(1 << 17)
    for mark, place, kind in ((b"PK\x05\x06", 12, "<I"), (b"PK\x06\x06", 40, "<Q")):
        at = end.rfind(mark)
        length = struct.unpack_from(kind, end, at + place)[0] if at >= 0 else 0
        if length > _LARGEST_DIRECTORY and length != 0xFFFFFFFF:  # the sign that the longer form has it
            raise PickleBombError(f"its table of contents would have {length:,} bytes")
    with zipfile.ZipFile(file) as archive:
        records = {one.filename: one for one in archive.infolist()}
        description = next((one for name, one in records.items() if name.endswith("/data.pkl")), None)
        if any(name.endswith("/constants.pkl") and name.count("/") == 1 for name in records):
            raise UnreadableCheckpointError(
                "it is a TorchScript program, not a checkpoint",
                way_out="Save its state_dict() with torch.save, or as safetensors",
            )
        if description is None:
            raise UnreadableCheckpointError(
                "it is a zip archive that torch.save did not write", way_out="Give a checkpoint file or folder"
            )
        if any(one.compress_type != zipfile.ZIP_STORED for one in records.values()):
            raise PickleBombError("it is compressed, which torch.save never does")
        if sum(one.file_size for one in records.values()) > size:
            raise PickleBombError("its parts are larger than the whole")
        if description.file_size > LARGEST_PICKLE:
            raise PickleBombError(f"it describes its tensors in {description.file_size:,} bytes")
        data = archive.read(description)
        root = description.filename.removesuffix("data.pkl")
        if f"{root}byteorder" in records and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("it was written on a machine of the other byte order")
    check_pickle(data)
    value, storages = read_pickle(data)
    places = {key: _place_in_archive(file, records[f"{root}data/{key}"], one) for key, one in storages.items()}
    return Content(value, places)


def _place_in_archive(file: Any, record: zipfile.ZipInfo, storage: Storage) -> int:
    """Where its bytes begin: behind a header whose length is only known there."""
    if record.file_size < storage.bytes:
        raise ValueError(f"storage {storage.key!r} has {record.file_size:,} bytes, not {storage.bytes:,}")
    file.seek(record.header_offset)
    header = file.read(30)
    name, extra = struct.unpack_from("<HH", header, 26)
    return record.header_offset + len(header) + name + extra


def _read_legacy(file: BufferedReader) -> Content:
    """Five pickles, one after another, and then each storage behind its number of elements."""
    file.seek(0)
    data = file.read(LARGEST_PICKLE)
    ends = [0]
    for _ in range(5):
        ends.append(check_pickle(data, ends[-1]))
    value, storages = read_pickle(data[ends[3] : ends[4]])
    keys, _ = read_pickle(data[ends[4] : ends[5]])
    at, places = ends[5], dict[str, int]()
    for key in map(str, keys):
        file.seek(at)
        places[key] = at + 8
        if int.from_bytes(file.read(8), "little") != storages[key].count:
            raise ValueError(f"storage {key!r} is not as long as it should be")
        at += 8 + storages[key].bytes
    return Content(value, places)


def damaged(path: Path, why: str) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"{path} is no intact torch file: {why}", way_out="Copy it again, or save it again"
    )


def _values(value: Any, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], StoredTensor | OddTensor | None]]:
    """Everything in nested dictionaries and lists, with the keys that lead to it."""
    if isinstance(value, (StoredTensor, OddTensor)):
        yield key or ("tensor",), value
        return
    yield key, None
    if len(key) >= _DEEPEST:
        return
    if isinstance(value, Mapping):
        table = cast(Mapping[Any, Any], value)
        # An optimizer's state, whatever it is called.
        if key and "param_groups" in table and "state" in table:
            key = ("optimizer", *key[1:])
        for place, (name, one) in enumerate(table.items()):
            # Of other objects the text could be longer than any memory.
            plain = isinstance(name, str) or (isinstance(name, int) and abs(name) < 1 << 63)
            yield from _values(one, (*key, str(name) if plain else f"<{type(name).__name__} {place}>"))
    elif isinstance(value, (list, tuple)):
        for place, one in enumerate(cast(list[Any], value)):
            yield from _values(one, (*key, str(place)))
