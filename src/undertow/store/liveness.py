"""Is the process that writes a run still there?"""

import os
import socket
import time
from pathlib import Path

from undertow.schema import RunFacts
from undertow.store.segment_catalogue import SEGMENTS_FOLDER

_SILENT_SECONDS = 60.0
_CLOCK_SLACK = 5.0


def is_alive(folder: Path, facts: RunFacts) -> bool:
    """On the machine of the writer its process tells; from elsewhere, only how long it has been silent."""
    last = last_write(folder)
    if facts.host != socket.gethostname():
        return time.time() - last < _SILENT_SECONDS
    if not _exists(facts.process):
        return False
    # Numbers of processes come back, in containers soon: one that began after the last write is another.
    begun = _begun(facts.process)
    return begun is None or begun <= last + _CLOCK_SLACK


def last_write(folder: Path) -> float:
    """Seconds since the epoch; 0 if nothing is there."""
    latest = 0.0
    for place in (folder, folder / SEGMENTS_FOLDER):
        try:
            with os.scandir(place) as entries:
                latest = max([latest, *(entry.stat().st_mtime for entry in entries if entry.is_file())])
        except OSError:
            continue
    return latest


def _exists(process: int) -> bool:
    if process <= 0:
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # another user's
    return _status(process)[:1] != [b"Z"]  # ended, but its parent has not asked yet


def _begun(process: int) -> float | None:
    """When the process began, where the system tells (Linux)."""
    try:
        ticks = int(_status(process)[19])
        with open("/proc/stat", "rb") as file:
            boot = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
        return boot + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _status(process: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third one on."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
