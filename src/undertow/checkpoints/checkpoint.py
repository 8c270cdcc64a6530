"""A checkpoint open for reading: what it holds, and one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from undertow.checkpoints.elements import STORED, Elements
from undertow.errors import UnreadableRunError
from undertow.schema.checkpoints import Skipped


class UnreadableCheckpointError(UnreadableRunError):
    """A file, folder or tensor that is no checkpoint, is damaged, or holds what Undertow refuses to load."""

    code = "UT006"


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor that can be loaded. Entries with the same `storage` are one tensor under several names."""

    path: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], Elements]
    storage: object = None

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * STORED[self.dtype].itemsize


def no_plain_floats(path: str, dtype: object) -> Skipped:
    return Skipped(path, f"stored as {dtype}, not as plain floats")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`skipped` names what is there but is no weight (integers, optimizer state); nothing is dropped silently."""

    source: str
    format: str
    entries: tuple[Entry, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: str, format: str, found: Iterable[Entry | Skipped], notes: Iterable[str] = ()) -> Checkpoint:
        parts = list(found)
        entries = tuple(one for one in parts if isinstance(one, Entry))
        return cls(source, format, entries, tuple(one for one in parts if isinstance(one, Skipped)), tuple(notes))

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)
