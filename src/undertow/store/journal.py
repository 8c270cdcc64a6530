"""The journal of a run, `events.jsonl`: one JSON object a line, only ever appended to."""

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import Any

import msgspec

from undertow.store.run_documents import file_mode

EVENTS_FILE = "events.jsonl"
# A journal is a few kilobytes per finding. What lies beyond these bounds is somebody's hole in a file, not ours.
_LARGEST = 1 << 26
_MOST_EVENTS = 200_000
_LONGEST_LINE = 1 << 22


class Journal:
    """Never raises: an event that cannot be written is counted and lost."""

    def __init__(self, folder: Path, name: str = EVENTS_FILE) -> None:
        self._path = folder / name
        self._file: int | None = None
        self.bytes_written = 0
        self.events_lost = 0
        # A run that was killed may have left half a line; the next one must not continue it.
        self._line_is_open = _ends_within_a_line(self._path)

    def append(self, kind: str, step: int | None, fields: dict[str, Any]) -> None:
        try:
            record = {"kind": kind, "step": step, "time": time.time(), **fields}
            line = msgspec.json.encode(record, enc_hook=str) + b"\n"
            if self._line_is_open:
                line = b"\n" + line
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(self._path, flags, file_mode(self._path.parent))
            written = os.write(self._file, line)
            self.bytes_written += written
            self._line_is_open = written < len(line)
            self.events_lost += self._line_is_open
        except Exception:  # an event is worth less than the training that it tells of
            self.events_lost += 1

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None


def _ends_within_a_line(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


def read_journal(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """All events that can be read, and how many lines could not. A last line without its end is still being written.

    What lies beyond the bounds counts as one line that could not be read.
    """
    path = folder / EVENTS_FILE
    events: list[dict[str, Any]] = []
    damaged = 0
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return events, 1
        with path.open("rb") as file:
            left = _LARGEST
            while (line := file.readline(_LONGEST_LINE)) and left > 0 and len(events) < _MOST_EVENTS:
                left -= len(line)
                if not line.endswith(b"\n") or not line.strip():
                    damaged += len(line) == _LONGEST_LINE
                    continue
                try:
                    record = msgspec.json.decode(line)
                except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                    damaged += 1
                    continue
                if isinstance(record, dict):
                    events.append(record)  # pyright: ignore[reportUnknownArgumentType]
                else:
                    damaged += 1
            damaged += bool(line)
    except FileNotFoundError:
        pass
    except OSError:
        damaged += 1
    return events, damaged
