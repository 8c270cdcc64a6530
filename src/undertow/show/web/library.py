"""The runs below a folder, kept open while somebody looks at them."""

import threading
import time
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undertow.errors import UnknownNameError
from undertow.run import Run
from undertow.store.listing import RunSummary, find_runs, summary_of
from undertow.store.run_documents import RUN_FILE
from undertow.views.verdict import Glance, Verdict, glance_at, glance_at_journal, judge

_OPEN_AT_ONCE = 16
_MOST_BYTES = 256 << 20  # of the indexes of open runs; the one that is asked for stays open whatever it takes
_FORGET_SECONDS = 600.0  # after which a run that nobody asks for is closed
_LIST_SECONDS = 2.0  # a folder is not searched more often than that
_REFRESH_SECONDS = 0.25


@dataclass(slots=True)
class OpenRun:
    """A reader is for one thread at a time: hold the lock while you read."""

    run: Run
    lock: threading.Lock = field(default_factory=threading.Lock)
    looked: float = 0.0
    asked: float = 0.0
    size: int = 0  # bytes
    verdict: Verdict | None = None

    def refresh(self) -> None:
        now = time.monotonic()
        if now - self.looked >= _REFRESH_SECONDS:
            self.looked = now
            if self.run.refresh():
                self.verdict = None
            self.size = self.run.reader.index_bytes

    def judged(self) -> Verdict:
        if self.verdict is None:
            self.verdict = judge(self.run)
        return self.verdict


@dataclass(frozen=True, slots=True)
class Listed:
    id: str
    summary: RunSummary
    glance: Glance

    def document(self) -> dict[str, Any]:
        summary, found = self.summary, self.glance.finding
        return {
            "id": self.id,
            "name": summary.name or summary.folder.name,
            "status": summary.status,
            "health": self.glance.health,
            "finding": found and {name: getattr(found, name) for name in ("code", "name", "severity")},
            **{name: getattr(summary, name) for name in ("steps", "last_step", "last_loss")},
            "has_loss": summary.last_loss is not None,  # one that is not finite cannot be written as a number
            "created": summary.created or None,
            "problem": summary.problem or None,
        }


class Library:
    """Runs are asked for by their place below the root, and only those found there are ever opened."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._listed: dict[str, Listed] = {}
        self._searched = float("-inf")
        self._open: OrderedDict[str, OpenRun] = OrderedDict()

    def runs(self) -> list[Listed]:
        with self._lock:
            self._search()
            return list(self._listed.values())

    def _search(self, patience: float = _LIST_SECONDS) -> None:
        if time.monotonic() - self._searched < patience:
            return
        self._make_room()
        summaries = find_runs(self.root, self._summary)
        listed = [Listed(self._id(one.folder), one, self._glance(one)) for one in summaries]
        self._listed = {one.id: one for one in listed}
        self._searched = time.monotonic()

    def _summary(self, folder: Path) -> RunSummary:
        """From the index of a run that is open: another one, every two seconds, would take as much again."""
        opened, listed = self._open.get(self._id(folder)), self._listed.get(self._id(folder))
        if opened is None:
            return summary_of(folder)
        if not opened.lock.acquire(blocking=False):
            return listed.summary if listed is not None else summary_of(folder)
        try:
            opened.refresh()
            return summary_of(folder, opened.run.reader)
        except Exception:  # the summary says what is wrong with it
            return summary_of(folder)
        finally:
            opened.lock.release()

    def _glance(self, summary: RunSummary) -> Glance:
        opened = self._open.get(self._id(summary.folder))
        if opened is not None and opened.verdict is not None:
            return glance_at(opened.verdict.diagnosis)  # the list says what the page of the run says
        return glance_at_journal(summary)

    def _id(self, folder: Path) -> str:
        return folder.relative_to(self.root).as_posix() if folder != self.root else "."

    @contextmanager
    def reading(self, identity: str) -> Generator[OpenRun]:
        """The run, fresh, for this thread alone."""
        opened = self._opened(identity)
        with opened.lock:
            opened.refresh()
            yield opened

    @contextmanager
    def reading_two(self, first: str, second: str) -> Generator[tuple[OpenRun, OpenRun]]:
        """Two runs at once; taken in the same order by everybody, so that nobody waits for ever."""
        low, high = sorted((first, second))
        with self.reading(low) as one:
            if low == high:
                yield one, one
                return
            with self.reading(high) as other:
                yield (one, other) if first == low else (other, one)

    def _has_begun(self, identity: str) -> bool:
        """A run that was not there when the folder was searched."""
        inside = ".." not in identity.split("/") and not identity.startswith("/") and "\0" not in identity
        try:
            return inside and (self.root / identity / RUN_FILE).exists()
        except OSError:  # a name that no folder can have
            return False

    def _opened(self, identity: str) -> OpenRun:
        with self._lock:
            is_there = self._has_begun(identity)
            if identity in self._listed and not is_there:
                self._open.pop(identity, None)
                raise UnknownNameError("this run is no longer there", way_out="Its folder was moved or removed")
            if identity not in self._listed:
                self._search(0 if is_there else _LIST_SECONDS)
            if identity not in self._listed:
                self._open.pop(identity, None)
                raise UnknownNameError("there is no such run here", way_out="The list of runs shows those there are")
            if identity not in self._open:
                self._open[identity] = OpenRun(Run(self._listed[identity].summary.folder))
            self._open.move_to_end(identity)
            opened = self._open[identity]
            opened.asked = time.monotonic()
            self._make_room()
            return opened

    def _make_room(self) -> None:
        """Close runs that nobody has asked for lately, and the least recently used while there are too many or they
        take too much."""
        while self._open:
            oldest = next(iter(self._open.values()))
            too_much = len(self._open) > _OPEN_AT_ONCE or sum(one.size for one in self._open.values()) > _MOST_BYTES
            if time.monotonic() - oldest.asked < _FORGET_SECONDS and not (too_much and len(self._open) > 1):
                return
            self._open.popitem(last=False)
