"""What processes take, as the system tells it (Linux)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MEASURES = ("RSS MB", "files", "threads")


def taken_by(process: int) -> tuple[float, int, int]:
    """Megabytes in memory, open file descriptors, and threads."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    )
    files = len(os.listdir(f"/proc/{process}/fd"))
    return int(status["VmRSS"].split()[0]) / 1024, files, int(status["Threads"])


def children_of(process: int) -> list[int]:
    found: list[int] = []
    for place in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, place.read_text(encoding="utf-8").split())
    return found


def megabytes_below(folder: Path) -> float:
    """On disk; files may come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total / 1e6
