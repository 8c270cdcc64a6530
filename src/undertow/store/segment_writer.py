"""Appending rows to one segment file, one write for any number of them; and writing a packed segment whole."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from undertow.store.arrow_messages import END_OF_STREAM
from undertow.store.layout import SegmentFacts
from undertow.store.run_documents import file_mode, replace_file
from undertow.store.template import Template


class SegmentWriter:
    """An open segment. Of the rows that `append` is given, each is written wholly or not at all."""

    def __init__(self, path: Path, template: Template) -> None:
        self.path = path
        self.template = template
        self.rows = 0
        self.broken = False  # ends in part of a row that could not be cut off: nothing may follow it
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, file_mode(path.parent))
        self.size = 0
        try:
            self._write(template.prefix)
        except OSError:
            # Not even the schema fits: leave nothing behind that a reader would have to skip.
            os.close(self._file)
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    def append(self, data: bytearray | memoryview | None = None) -> None:
        """Write some rows, by default the one that the template holds. Raises OSError when not all of them fit;
        `rows` then counts those that do.
        """
        before = self.size
        try:
            self._write(self.template.batch if data is None else data, self.template.stride)
        finally:
            self.rows += (self.size - before) // self.template.stride

    def _write(self, data: bytes | bytearray | memoryview, unit: int | None = None) -> None:
        """Raises OSError after cutting off what a full disk left of a unit, by default of the whole. Only bytes that
        no reader counts as a row are ever cut, so a reader's map of the file stays valid."""
        written = 0
        try:
            written = os.write(self._file, data)
            while written < len(data):  # rarely: the next try says why
                written += os.write(self._file, memoryview(data)[written:])
        except OSError:
            self.size += written - written % (unit or len(data))
            self.broken = True
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, self.size, os.SEEK_SET)
            self.broken = False
            raise
        self.size += written

    def close(self) -> None:
        """Never raises: a segment without its end marker is as good."""
        with contextlib.suppress(OSError):
            if not self.broken:
                self._write(END_OF_STREAM)
        with contextlib.suppress(OSError):
            os.close(self._file)


def write_packed(path: Path, facts: SegmentFacts, columns: Sequence[NDArray[Any]]) -> int:
    """Replace `path` by a segment of one record batch with all rows; returns its size."""
    template = Template(facts, rows=len(columns[0]))
    for target, source in zip(template.arrays, columns, strict=True):
        target[...] = source.reshape(target.shape)
    replace_file(path, template.prefix, template.batch, END_OF_STREAM, durable=True)
    return len(template.prefix) + template.stride + len(END_OF_STREAM)
