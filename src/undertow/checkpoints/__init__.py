"""Weights without a model: checkpoints of any common format, one tensor at a time, and never a pickle's code."""

import os
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from undertow.checkpoints.checkpoint import Checkpoint, Entry, UnreadableCheckpointError
from undertow.checkpoints.elements import Elements
from undertow.checkpoints.folder import read_file, read_folder
from undertow.checkpoints.in_memory import as_mapping, is_module, read_mapping, read_module
from undertow.checkpoints.naming import cleaned
from undertow.schema.checkpoints import Skipped

__all__ = ["Checkpoint", "Elements", "Entry", "UnreadableCheckpointError", "open_checkpoint"]

_LARGEST_RANK = 32  # of any numpy
_MOST_ELEMENTS = 1 << 59  # whose bytes a signed number of 64 bits can count


def open_checkpoint(source: str | os.PathLike[str] | Mapping[str, Any] | Any) -> Checkpoint:
    """A file, a folder, a torch module, or a mapping from names to arrays. Reads names and shapes, no weights yet."""
    mapping = as_mapping(source)
    if mapping is not None:
        checkpoint = read_mapping(mapping)
    elif is_module(source):
        checkpoint = read_module(source)
    elif isinstance(source, (str, os.PathLike)):
        checkpoint = _read_path(Path(source).expanduser())
    else:
        raise UnreadableCheckpointError(
            f"weights cannot be read from a {type(source).__name__}",
            way_out="Give the path of a checkpoint, a torch module, or a mapping from names to arrays",
        )
    paths = cleaned([entry.path for entry in checkpoint.entries])
    entries = tuple(replace(entry, path=path) for entry, path in zip(checkpoint.entries, paths, strict=True))
    checked = [_measurable(entry) for entry in entries]
    return Checkpoint.of(checkpoint.source, checkpoint.format, [*checkpoint.skipped, *checked], checkpoint.notes)


def _measurable(entry: Entry) -> Entry | Skipped:
    """A tensor without elements may claim dimensions that numpy cannot count."""
    if len(entry.shape) > _LARGEST_RANK or prod(max(1, one) for one in entry.shape) > _MOST_ELEMENTS:
        return Skipped(entry.path, f"its shape {list(entry.shape)[:8]} is beyond what can be counted")
    return entry


def _read_path(path: Path) -> Checkpoint:
    try:
        if path.is_dir():
            return read_folder(path)
        if not path.exists():
            raise UnreadableCheckpointError(
                f"there is no checkpoint {str(path)!r}", way_out="Give the path of a checkpoint file or folder"
            )
        return read_file(path)
    except OSError as problem:
        raise UnreadableCheckpointError(
            f"{path} cannot be read: {problem.strerror or problem}", way_out="Look at its permissions"
        ) from problem
