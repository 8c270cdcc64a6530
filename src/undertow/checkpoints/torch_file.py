"""Files of `torch.save`, loaded with `weights_only=True` and mapped: tensors and plain containers, no code.

Torch is imported here and nowhere earlier, and only for such a file.
"""

import pickle
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from undertow.checkpoints.checkpoint import Checkpoint, UnreadableCheckpointError
from undertow.checkpoints.naming import arrange
from undertow.checkpoints.pickle_bounds import LARGEST_PICKLE, PickleBombError, check_pickle

# How torch's own format before 1.6 begins; any other pickle is refused unread.
_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_DEEPEST = 32
MOST_VALUES = 1_000_000  # in all containers; one list may stand in many, so a small file can hold any number
_LARGEST_DIRECTORY = 1 << 24  # bytes of a zip archive's table of contents: 150,000 tensors


def read_torch_file(path: Path) -> Checkpoint:
    mapped = _check_format(path)
    torch = import_torch(path)
    content = _load(torch, path, mapped)
    found: dict[tuple[str, ...], Any] = {}
    for number, (key, value) in enumerate(_values(content, torch.Tensor, ())):
        if isinstance(value, torch.Tensor):
            found[key] = value
        if number > MOST_VALUES:
            raise damaged(path, f"it holds more than {MOST_VALUES:,} values within each other")
    paths, skipped, notes = arrange(list(found))
    if not mapped:
        notes.append("a torch file of before 1.6 cannot be mapped: all of it was loaded")
    from undertow.checkpoints.torch_tensors import entry_of

    entries = [entry_of(paths[key], found[key], mapped=mapped) for key in paths]
    return Checkpoint.of(str(path), "torch", [*skipped, *entries], notes)


def import_torch(path: Path) -> Any:
    try:
        import torch
    except ImportError as problem:
        raise UnreadableCheckpointError(
            f"{path} needs torch to be read", way_out="pip install 'undertow[torch]', or convert it to safetensors"
        ) from problem
    return torch


def _check_format(path: Path) -> bool:
    """Whether torch can map the file. Refuses what torch did not write before anything is unpickled."""
    with path.open("rb") as file:
        first = file.read(len(_LEGACY))
    if first[:2] == b"PK":
        try:
            with path.open("rb") as file:
                names = check_archive(file, path.stat().st_size)
        except PickleBombError as problem:
            raise damaged(path, str(problem)) from problem
        except Exception as problem:  # zipfile raises anything at all for a damaged directory
            raise damaged(path, f"its end is missing or damaged ({problem})") from problem
        if _is_program(names):
            raise UnreadableCheckpointError(
                f"{path} is a TorchScript program, not a checkpoint",
                way_out="Save its state_dict() with torch.save, or as safetensors",
            )
        if not any(name.endswith("/data.pkl") for name in names):
            raise UnreadableCheckpointError(
                f"{path} is a zip archive that torch.save did not write", way_out="Give a checkpoint file or folder"
            )
        return True
    if first == _LEGACY:
        _check_legacy(path)
        return False
    if first[:1] == b"\x80":
        raise UnreadableCheckpointError(
            f"{path} is a pickle: loading it would run whatever code it holds, so Undertow does not",
            way_out="Save the tensors with torch.save(model.state_dict(), …) or as safetensors",
        )
    raise UnreadableCheckpointError(
        f"{path} is no checkpoint that Undertow knows",
        way_out="Give a .safetensors file, a file of torch.save, or a folder of a sharded or distributed checkpoint",
    )


def check_archive(file: Any, size: int) -> list[str]:
    """The names in a zip archive of `torch.save`, which packs nothing and writes no byte twice."""
    file.seek(max(0, size - (1 << 17)))
    end = file.read(1 << 17)
    for mark, place, kind in ((b"PK\x05\x06", 12, "<I"), (b"PK\x06\x06", 40, "<Q")):
        at = end.rfind(mark)
        length = struct.unpack_from(kind, end, at + place)[0] if at >= 0 else 0
        if length > _LARGEST_DIRECTORY and length != 0xFFFFFFFF:  # the sign that the longer form has it
            raise PickleBombError(f"its table of contents would have {length:,} bytes")
    with zipfile.ZipFile(file) as archive:
        records, names = archive.infolist(), archive.namelist()
        if any(one.compress_type != zipfile.ZIP_STORED for one in records):
            raise PickleBombError("it is compressed, which torch.save never does")
        if sum(one.file_size for one in records) > size:
            raise PickleBombError("its parts are larger than the whole")
        for one in records:
            if one.filename.endswith("/data.pkl") and not _is_program(names):
                if one.file_size > LARGEST_PICKLE:
                    raise PickleBombError(f"it describes its tensors in {one.file_size:,} bytes")
                check_pickle(archive.read(one))
        return names


def _is_program(names: list[str]) -> bool:
    return any(name.endswith("/constants.pkl") and name.count("/") == 1 for name in names)


def _check_legacy(path: Path) -> None:
    """Five pickles, one after another, and then the numbers."""
    with path.open("rb") as file:
        data = file.read(LARGEST_PICKLE)
    try:
        at = 0
        for _ in range(5):
            at = check_pickle(data, at)
    except PickleBombError as problem:
        raise damaged(path, str(problem)) from problem


def _load(torch: Any, path: Path, mapped: bool) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as problem:
        reason = _object_refused(str(problem))
        if reason:
            raise UnreadableCheckpointError(
                f"{path} holds Python objects besides tensors, and loading them would run code: {reason}",
                way_out="Save only the state: torch.save(model.state_dict(), …)",
            ) from problem
        raise damaged(path, _first_line(str(problem))) from problem
    except Exception as problem:  # torch raises anything at all for a damaged file
        raise damaged(path, _first_line(str(problem))) from problem


def _object_refused(text: str) -> str:
    """Torch's word on an object that is no tensor; what it says around that advises to load the file all the same."""
    lines = [line for line in text.splitlines() if "GLOBAL" in line or "Unsupported class" in line]
    return _first_line(lines[0]) if lines else ""


def _first_line(text: str) -> str:
    marker = "WeightsUnpickler error:"
    text = text.split(marker, 1)[1] if marker in text else text
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[0][:200].rstrip(".") if lines else "no reason given"


def damaged(path: Path, why: str) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"{path} is no intact torch file: {why}", way_out="Copy it again, or save it again"
    )


def _values(value: Any, tensor: type, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Everything in nested dictionaries and lists, with the keys that lead to it."""
    if isinstance(value, tensor):
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
            yield from _values(one, tensor, (*key, str(name) if plain else f"<{type(name).__name__} {place}>"))
    elif isinstance(value, (list, tuple)):
        for place, one in enumerate(cast(list[Any], value)):
            yield from _values(one, tensor, (*key, str(place)))
