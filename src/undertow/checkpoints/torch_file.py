"""Files of `torch.save`, loaded with `weights_only=True` and mapped: tensors and plain containers, no code.

Torch is imported here and nowhere earlier, and only for such a file.
"""

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from undertow.checkpoints.checkpoint import Checkpoint, UnreadableCheckpointError
from undertow.checkpoints.naming import arrange

# How torch's own format before 1.6 begins; any other pickle is refused unread.
_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_DEEPEST = 32


def read_torch_file(path: Path) -> Checkpoint:
    mapped = _check_format(path)
    torch = import_torch(path)
    content = _load(torch, path, mapped)
    found = dict(_tensors(content, torch.Tensor, ()))
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
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except Exception as problem:  # zipfile raises anything at all for a damaged directory
            raise damaged(path, f"its end is missing or damaged ({problem})") from problem
        if any(name.endswith("/constants.pkl") and name.count("/") == 1 for name in names):
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


def _tensors(value: Any, tensor: type, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every tensor in nested dictionaries and lists, with the keys that lead to it."""
    if isinstance(value, tensor):
        yield key or ("tensor",), value
    elif len(key) >= _DEEPEST:
        return
    elif isinstance(value, Mapping):
        table = cast(Mapping[Any, Any], value)
        # An optimizer's state, whatever it is called.
        if key and "param_groups" in table and "state" in table:
            key = ("optimizer", *key[1:])
        for name, one in table.items():
            yield from _tensors(one, tensor, (*key, str(name)))
    elif isinstance(value, (list, tuple)):
        for place, one in enumerate(cast(list[Any], value)):
            yield from _tensors(one, tensor, (*key, str(place)))
