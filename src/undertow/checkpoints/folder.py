"""Folders and index files: which of the files in a folder make up one checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from undertow.checkpoints.checkpoint import Checkpoint, Entry, UnreadableCheckpointError
from undertow.checkpoints.distributed_folder import METADATA, read_distributed
from undertow.checkpoints.safetensors_file import read_safetensors
from undertow.checkpoints.stored_bytes import open_regular
from undertow.checkpoints.torch_file import read_torch_file
from undertow.schema.checkpoints import Skipped

INDEX_ENDING = ".index.json"
LARGEST_INDEX = 50_000_000  # bytes: half a million tensors
_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")


def read_file(path: Path) -> Checkpoint:
    """By what the file is called, then by what torch makes of it."""
    if path.name.endswith(INDEX_ENDING):
        return _read_indexed(path)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    if path.name == METADATA or path.suffix == ".distcp":
        return read_distributed(path.parent)
    return read_torch_file(path)


def read_folder(folder: Path) -> Checkpoint:
    if (folder / METADATA).is_file():
        return read_distributed(folder)
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    # An index before files without one, safetensors before torch: the order in which others save and prefer them.
    for ending in (".safetensors" + INDEX_ENDING, INDEX_ENDING):
        indexes = [path for path in files if path.name.endswith(ending)]
        if indexes:
            return _read_indexed(_only(folder, indexes))
    safetensors = [path for path in files if path.suffix == ".safetensors"]
    if safetensors:
        return _joined(folder, [read_safetensors(path) for path in safetensors])
    return read_torch_file(_only(folder, [path for path in files if path.suffix in _TORCH_ENDINGS]))


def _only(folder: Path, files: list[Path]) -> Path:
    if len(files) == 1:
        return files[0]
    if not files:
        raise UnreadableCheckpointError(
            f"{folder} holds no checkpoint",
            way_out="Give a .safetensors file, a file of torch.save, or a folder with an index or a .metadata file",
        )
    raise UnreadableCheckpointError(
        f"{folder} holds several checkpoints", way_out=f"Name one: {', '.join(path.name for path in files[:8])}"
    )


def _read_indexed(index: Path) -> Checkpoint:
    """An index says which file holds which tensor; every file must be there, with exactly those."""
    weight_map = _weight_map(index)
    folder = index.parent
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UnreadableCheckpointError(
            f"{folder} misses {len(missing)} of the {len(names)} files of {index.name}: {', '.join(missing[:4])}",
            way_out="Copy or download the missing files",
        )
    shards: list[Checkpoint] = []
    for name in names:
        shard = read_safetensors(folder / name) if name.endswith(".safetensors") else read_torch_file(folder / name)
        held = {entry.path for entry in shard.entries} | {one.path for one in shard.skipped}
        promised = {tensor for tensor, file in weight_map.items() if file == name}
        if promised - held:
            raise UnreadableCheckpointError(
                f"{folder / name} does not hold tensor {min(promised - held)!r}, which {index.name} says it does",
                way_out="Copy or download the files of one and the same version",
            )
        extra = held - promised
        if extra:
            shard = replace(
                shard,
                entries=tuple(entry for entry in shard.entries if entry.path not in extra),
                skipped=(
                    *shard.skipped,
                    *(Skipped(one, f"{name} holds it, but {index.name} does not") for one in extra),
                ),
            )
        shards.append(shard)
    return _joined(folder, shards)


def _weight_map(index: Path) -> dict[str, str]:
    with open_regular(index) as file:
        text = file.read(LARGEST_INDEX + 1)
    if len(text) > LARGEST_INDEX:
        raise UnreadableCheckpointError(f"{index} is too large for an index: more than {LARGEST_INDEX:,} bytes")
    try:
        content: Any = msgspec.json.decode(text)
        weight_map = msgspec.convert(content["weight_map"], dict[str, str])
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as problem:
        raise UnreadableCheckpointError(
            f"{index} is no index of a checkpoint: {problem}",
            way_out='It must be JSON with a "weight_map" from tensors to files',
        ) from problem
    for tensor, name in weight_map.items():
        if not name or name != Path(name).name or name in (".", ".."):
            raise UnreadableCheckpointError(
                f"{index} says that tensor {tensor!r} is in {name!r}, which is not in its own folder",
                way_out="An index may only name files beside it",
            )
    if not weight_map:
        raise UnreadableCheckpointError(f"{index} names no tensor", way_out="Copy or download it again")
    return weight_map


def _joined(folder: Path, parts: list[Checkpoint]) -> Checkpoint:
    entries: list[Entry] = []
    seen: dict[str, str] = {}
    for part in parts:
        for entry in part.entries:
            if entry.path in seen:
                raise UnreadableCheckpointError(
                    f"tensor {entry.path!r} is in {seen[entry.path]} and in {part.source}",
                    way_out="Give one of the files, or remove what belongs to another checkpoint",
                )
            seen[entry.path] = part.source
            entries.append(entry)
    number = "1 file" if len(parts) == 1 else f"{len(parts)} files"
    return Checkpoint(
        str(folder),
        f"{parts[0].format}, {number}",
        tuple(entries),
        tuple(one for part in parts for one in part.skipped),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )
