"""The files of a run folder, in the order in which they may become visible to a reader elsewhere."""

import os
from dataclasses import dataclass
from pathlib import Path

from undertow.store.arrow_messages import END_OF_STREAM
from undertow.store.layout import SCALARS
from undertow.store.run_documents import LAYERS_FILE, RUN_FILE
from undertow.store.segment_catalogue import SEGMENTS_FOLDER, ZOOM_FOLDER

SEGMENT_END = ".arrows"
SCALARS_TURN = 2


@dataclass(frozen=True, slots=True)
class LocalFile:
    name: str  # from the run folder, with forward slashes
    size: int
    version: tuple[int, int, int]  # inode, size, time of the last change


def turn_of(name: str) -> int:
    """Layers before the numbers of them, numbers before the scalars that make a frame count, facts last.

    Whoever downloads goes the other way round, and so never counts a frame of which something is missing.
    """
    if name == LAYERS_FILE:
        return 0
    if name.startswith(f"{SEGMENTS_FOLDER}/{SCALARS}-"):
        return SCALARS_TURN
    if name == RUN_FILE:
        return 4
    return 1 if name.endswith(SEGMENT_END) else 3


def is_growing(folder: Path, file: LocalFile) -> bool:
    """A segment without its end: more rows may follow."""
    if not file.name.endswith(SEGMENT_END):
        return False
    try:
        with (folder / file.name).open("rb") as opened:
            opened.seek(-min(file.size, len(END_OF_STREAM)), os.SEEK_END)
            return opened.read() != END_OF_STREAM
    except OSError:
        return False  # taken away, or cut, since the folder was listed


def content_of(folder: Path, file: LocalFile) -> bytes:
    """All of it; of scalars that have grown since the folder was listed only what was there then, so that no frame
    counts whose numbers were sent before they were complete.
    """
    with (folder / file.name).open("rb") as opened:
        same = os.fstat(opened.fileno()).st_ino == file.version[0]
        return opened.read(file.size if same and turn_of(file.name) == SCALARS_TURN else -1)


def files_here(folder: Path) -> list[LocalFile]:
    """In the order of `turn_of`. Files that begin with a dot are half written, or our own."""
    found: list[LocalFile] = []
    for inner in ("", SEGMENTS_FOLDER, ZOOM_FOLDER):
        try:
            with os.scandir(folder / inner) as entries:
                for entry in entries:
                    if entry.is_file() and not entry.name.startswith("."):
                        status = entry.stat()
                        version = (status.st_ino, status.st_size, status.st_mtime_ns)
                        found.append(LocalFile(f"{inner}/{entry.name}".lstrip("/"), status.st_size, version))
        except OSError:
            continue  # not made yet, or changed while we looked: there is a next time
    return sorted(found, key=lambda file: (turn_of(file.name), file.name))
