"""A checkpoint open for reading: what it holds, and one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from undertow.checkpoints.elements import STORED, Elements
from undertow.schema.checkpoints import Skipped


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor that can be loaded. Entries with the same `storage` are one tensor under several names."""

    path: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], Elements]
    release: Callable[[], None] = _nothing
    storage: object = None

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * STORED[self.dtype].itemsize

    @contextmanager
    def elements(self) -> Iterator[Elements]:
        """Loaded for the time of the block, so that no more than one tensor is held."""
        try:
            yield self.load()
        finally:
            self.release()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`skipped` names what is there but is no weight (integers, optimizer state); nothing is dropped silently."""

    source: str
    format: str
    entries: tuple[Entry, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)
