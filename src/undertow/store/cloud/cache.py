"""Where copies of runs behind addresses lie, and how many of them are kept."""

import hashlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

VERSIONS_FILE = ".remote.json"  # in each copy: name → version that it is of; written at every look
_MOST_KEPT = 20 * 10**9  # bytes
_IN_USE = 86_400.0  # seconds since the last look: somebody may still read it


def cache_folder(address: str) -> Path:
    """Where the copy of a run lies."""
    name = re.sub(r"[^\w+=-]+", "-", address.rpartition("/")[2]).strip("-")
    return _root() / mark_of(address) / (name or "run")


def _root() -> Path:
    """UNDERTOW_CACHE, else the cache folder of the user, else a temporary one."""
    given = os.environ.get("UNDERTOW_CACHE") or os.environ.get("XDG_CACHE_HOME")
    root = Path(given).expanduser() if given else Path("~/.cache").expanduser()
    root = root if os.environ.get("UNDERTOW_CACHE") else root / "undertow"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        root = Path(tempfile.gettempdir()) / "undertow-cache"
    return root


def mark_of(address: str) -> str:
    """A short name for an address that no other one has."""
    return hashlib.sha256(address.encode()).hexdigest()[:16]


def make_room(newest: Path) -> None:
    """Remove the copies that nobody has looked at for longest while there is too much; never one that may be in use.

    A folder without a versions file is not a copy of ours and is left alone, as is everything when `newest` lies
    elsewhere than in the cache.
    """
    root = newest.parent.parent
    if root != _root():
        return
    copies = sorted((looked, folder) for folder in root.glob("*/*") if (looked := _looked_at(folder)) is not None)
    sizes = {folder: _size(folder) for _, folder in copies}
    surplus = sum(sizes.values()) - _MOST_KEPT
    for looked, folder in copies:
        if surplus <= 0 or time.time() - looked < _IN_USE:
            return
        shutil.rmtree(folder.parent, ignore_errors=True)
        surplus -= sizes[folder]


def _looked_at(folder: Path) -> float | None:
    try:
        return (folder / VERSIONS_FILE).stat().st_mtime
    except OSError:
        return None


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # went away meanwhile
            continue
    return total
