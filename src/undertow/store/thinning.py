"""Keeping a run within its disk budget: older frames at full resolution become rarer.

The segment to thin is the one whose frames are closest together for their age, so that what is
kept spreads evenly over the logarithm of age. Scalars, the first frame of a stream and the
coarsest zoom level are never touched; finer zoom levels go, oldest first, only when they take
more than half of the budget or nothing else is left.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from undertow.store.layout import SCALARS, ZOOM_LEVELS
from undertow.store.segment import DamagedSegmentError, Segment, SegmentReplacedError
from undertow.store.segment_catalogue import files_of
from undertow.store.tracks import Closed, Files, rewrite


class DiskBudget:
    """Watches the finished segments of a run and thins them when it grows beyond `limit` bytes."""

    def __init__(self, files: Files, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._closed: list[Closed] = []

    def add(self, closed: Closed) -> None:
        if closed.stream != SCALARS and closed.level != ZOOM_LEVELS[-1] and closed.rows:
            self._closed.append(closed)

    def adopt(self, folders: Iterable[Path]) -> None:
        """Take over the segments that an earlier process of a resumed run has left."""
        for folder in folders:
            for (stream, level), _, entry in files_of(folder):
                try:
                    segment = Segment(Path(entry.path))
                    rows, key = segment.index()
                    if len(rows):
                        every = segment.facts.every
                        self.add(Closed(segment.path, stream, level, int(key[0][0]), len(rows), segment.size, every))
                except (DamagedSegmentError, SegmentReplacedError):
                    continue  # left as it is: nothing is thrown away that could not be understood
        self._closed.sort(key=lambda closed: closed.first_sequence)

    def keep(self, sequence: int) -> None:
        """Thin until the run fits again, or nothing more can be thinned."""
        while self._files.bytes_on_disk > self._limit:
            victim = self._choose(sequence)
            if victim is None or not self._shrink(victim):
                return

    def _choose(self, sequence: int) -> Closed | None:
        frames = [closed for closed in self._closed if closed.level == 1]
        first = {closed.stream: closed for closed in reversed(frames)}  # the first frame of a stream stays
        frames = [closed for closed in frames if closed.rows > 1 or closed is not first[closed.stream]]
        zoomed = [closed for closed in self._closed if closed.level > 1]
        if not frames or sum(closed.size for closed in zoomed) > self._limit // 2:
            return min(zoomed, key=lambda closed: (closed.level, closed.first_sequence), default=None)
        return max(frames, key=lambda closed: (1 + sequence - closed.first_sequence) / closed.every)

    def _shrink(self, victim: Closed) -> bool:
        try:
            if victim.level > 1 or victim.rows == 1:
                victim.path.unlink(missing_ok=True)
                self._closed.remove(victim)
                self._files.bytes_on_disk -= victim.size
                return True
            facts = msgspec.structs.replace(Segment(victim.path).facts, every=2 * victim.every)
            size = rewrite(victim.path, facts, slice(None, None, 2))
        except OSError:
            return False  # no space to rewrite it, or no permission: perhaps next time
        except (DamagedSegmentError, SegmentReplacedError):
            self._closed.remove(victim)
            return True
        self._files.bytes_written += size
        self._files.bytes_on_disk += size - victim.size
        victim.size, victim.every, victim.rows = size, 2 * victim.every, (victim.rows + 1) // 2
        return True
