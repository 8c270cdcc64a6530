"""Which segment files a folder holds, opened when first asked for and looked at again on refresh."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from undertow.store.segment import DamagedSegmentError, Segment, SegmentReplacedError

SEGMENTS_FOLDER = "segments"
ZOOM_FOLDER = "zoom"

_NAME = re.compile(r"(?P<stream>[a-z0-9_]+)(?:-x(?P<level>\d{1,9}))?-(?P<number>\d{5,12})\.arrows")

Key = tuple[str, int]  # stream, frames per row


def segment_name(stream: str, level: int, number: int) -> str:
    return f"{stream}-{number:05d}.arrows" if level == 1 else f"{stream}-x{level}-{number:05d}.arrows"


def files_of(folder: Path) -> Iterator[tuple[Key, int, os.DirEntry[str]]]:
    """Every file named like a segment: its stream and level, its number, and itself."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is not None:
                    yield (match["stream"], int(match["level"] or 1)), int(match["number"]), entry
    except OSError:
        return


class Catalogue:
    """The segments of one folder by stream and level, in the order they were begun.

    `wanted` chooses streams by name.
    """

    def __init__(self, folder: Path, wanted: Callable[[str], bool] = lambda stream: True) -> None:
        self._folder = folder
        self._wanted = wanted
        self._seen: dict[Key, dict[int, tuple[Path, tuple[int, int]]]] = {}  # number → path, (inode, size)
        self._open: dict[Path, tuple[tuple[int, int], Segment | None]] = {}
        self.problems: dict[Path, str] = {}

    @property
    def keys(self) -> list[Key]:
        return sorted(self._seen)

    def refresh(self) -> set[Key]:
        """Look at the folder again; returns the streams in which something changed."""
        seen: dict[Key, dict[int, tuple[Path, tuple[int, int]]]] = {}
        for key, number, entry in files_of(self._folder):
            if not self._wanted(key[0]):
                continue
            try:
                status = entry.stat()
            except OSError:
                continue  # taken away since it was listed
            seen.setdefault(key, {})[number] = (Path(entry.path), (status.st_ino, status.st_size))
        changed = {key for key in seen.keys() | self._seen.keys() if seen.get(key) != self._seen.get(key)}
        self._seen = seen
        present = {path for files in seen.values() for path, _ in files.values()}
        self._open = {path: known for path, known in self._open.items() if path in present}
        self.problems = {path: problem for path, problem in self.problems.items() if path in present}
        return changed

    def segments(self, key: Key) -> list[Segment]:
        """The usable segments of a stream; the others are told of in `problems`."""
        files = self._seen.get(key, {})
        found = [self._segment(key, *files[number]) for number in sorted(files)]
        return [segment for segment in found if segment is not None and segment.batches]

    def ends(self, key: Key) -> list[Segment]:
        """The first and the last usable segment of a stream, without opening those between."""
        files = self._seen.get(key, {})
        found: list[Segment] = []
        for numbers in (sorted(files), sorted(files, reverse=True)):
            for number in numbers:
                segment = self._segment(key, *files[number])
                if segment is not None and segment.batches:
                    found.append(segment)
                    break
        return found

    def leave_out(self, path: Path, why: str) -> None:
        self.problems[path] = f"{path.parent.name}/{path.name} is left out: {why}"

    @property
    def opened(self) -> list[Segment]:
        return [segment for _, segment in self._open.values() if segment is not None]

    def _segment(self, key: Key, path: Path, identity: tuple[int, int]) -> Segment | None:
        known = self._open.get(path)
        if known is not None and known[0] == identity:
            return known[1]
        segment: Segment | None = None
        try:
            segment = Segment(path)
            if (segment.facts.stream, segment.facts.level) != key:
                raise DamagedSegmentError(f"it holds stream {segment.facts.stream!r}, not what its name says")
            self.problems.pop(path, None)
        except DamagedSegmentError as error:
            segment = None
            self.leave_out(path, str(error))
        except SegmentReplacedError:
            return None  # gone since it was listed
        self._open[path] = (identity, segment)
        return segment
