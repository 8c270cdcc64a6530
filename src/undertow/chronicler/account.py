"""The account of a run, kept in this process: frames are written, judged, and what changes is told."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from undertow.chronicler.known import Known
from undertow.detect.engine import Change, Engine, FindingChange
from undertow.detect.journal import EVENT, changes_in, to_record
from undertow.schema.findings import Finding
from undertow.schema.frames import Frame
from undertow.schema.graph import LayerGraph
from undertow.schema.layers import LayerTable
from undertow.store.reader import RunReader
from undertow.store.writer import RunWriter

_MOST_RECALLED = 20_000  # frames of a run so far that the rules are shown again


@dataclass(frozen=True, slots=True)
class Told:
    """A change to what is known to be wrong; the finding is explained unless it is over."""

    change: Change
    key: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class News:
    """Frames that are recorded now, and what they changed."""

    told: list[Told]
    frames: Sequence[Frame] = ()


class Account:
    """Begin with `begin` or `take_over`. `chronicler.remote.Remote` is the same with the work done elsewhere."""

    lost = ""  # why it cannot go on; only the account of another process gets lost

    def __init__(self, known: Known, writer: RunWriter) -> None:
        self.known = known
        self.news: deque[News] = deque()
        self._writer = writer
        self._engine = Engine()
        self._on_disk = -1  # sequence of the last whole frame that another process has written
        self._in_journal: set[bytes] = set()  # what that process may have said of frames that are shown again

    @classmethod
    def begin(cls, known: Known, resume: bool, disk_budget: int | None) -> Account:
        """A new run, or the next part of one."""
        account = cls(known, RunWriter(known.folder, known.facts, resume=resume, disk_budget=disk_budget))
        known.layers = account._writer.layers
        if account._writer.last_step is not None:
            known.first_step = account._writer.last_step + 1
            account._recall(RunReader(known.folder))
        return account

    @classmethod
    def take_over(cls, known: Known, disk_budget: int | None, seam_due: bool, until: int | None = None) -> Account:
        """Go on with what another process has written so far, as if it had been this one.

        `until` is the last frame of which everything has been told, if that is not the last of all.
        """
        writer = RunWriter(known.folder, known.facts, takes_over=True, disk_budget=disk_budget)
        writer.seam_due = seam_due
        account = cls(known, writer)
        earlier = RunReader(known.folder)
        account._on_disk = earlier.last_sequence
        last_step = account._recall(earlier, until)
        events = earlier.events()
        told = [event for event in events if until is None or (event.get("step") or 0) <= last_step]
        last_words = {(change.finding.code, change.key): change for change in changes_in(told)}
        account._engine.recall(last_words.values(), adopt=True)
        if until is not None:
            account._in_journal = {_mark(**_fields(event)) for event in events}
        return account

    def _recall(self, earlier: RunReader, until: int | None = None) -> int:
        """Let the rules see the run so far, so that they judge it as one; returns the last step they saw."""
        self._engine.set_layers(earlier.layers, earlier.graph)
        self.known.layers, self.known.graph = earlier.layers, earlier.graph
        last = earlier.last_sequence if until is None else until
        last_step = -1
        frames = itertools.takewhile(lambda one: one.sequence <= last, earlier.frames(last - _MOST_RECALLED))
        while batch := list(itertools.islice(frames, 256)):
            self._engine.observe_many(batch)
            last_step = batch[-1].step
        if not self.known.events:
            self.known.events = [event for event in earlier.events() if event.get("kind") == "first_nonfinite"]
        return last_step

    # -- what comes in ------------------------------------------------------------------------------------

    def record(self, frames: Sequence[Frame]) -> None:
        self.known.take_frames(frames)
        self.news.append(News(self.judge(frames), frames))

    def judge(self, frames: Sequence[Frame]) -> list[Told]:
        """Write frames and judge them; the changes are in the journal already."""
        self._writer.append_many([frame for frame in frames if frame.sequence > self._on_disk])
        told: list[Told] = []
        for frame, changes in self._engine.changes(frames):
            for change in changes:
                self.write_event(EVENT, frame.step, to_record(change))
                told.append(self._tell(change))
        return told

    def _tell(self, change: FindingChange) -> Told:
        finding = change.finding
        if change.change is not Change.CLOSED:
            finding = self.known.explained(finding, self._engine.beside(change))
        return Told(change.change, change.key, finding)

    def take_layers(self, layers: LayerTable, graph: LayerGraph) -> None:
        self._writer.set_layers(layers, graph)
        self._engine.set_layers(layers, graph)
        self.known.layers, self.known.graph = layers, graph

    def write_event(self, kind: str, step: int | None, fields: dict[str, Any]) -> None:
        if self._in_journal:
            mark = _mark(kind, step, fields)
            if mark in self._in_journal:
                self._in_journal.discard(mark)
                return
        self._writer.event(kind, step, **fields)

    def take_event(self, kind: str, step: int | None, fields: dict[str, Any]) -> None:
        """Something that may explain a finding later."""
        self.known.events.append({"kind": kind, "step": step, **fields})
        self.write_event(kind, step, fields)

    def write_facts(self) -> None:
        self._writer.write_facts()

    # -- what goes out ------------------------------------------------------------------------------------

    def look(self) -> None:
        """Everything is done as soon as it is asked for."""

    def settle(self) -> None:
        """Likewise."""

    def found(self) -> list[Finding]:
        return self._engine.findings()

    @property
    def last_sequence(self) -> int:
        return self._writer.last_sequence

    @property
    def seam_due(self) -> bool:
        return self._writer.seam_due

    @property
    def bytes_written(self) -> int:
        return self._writer.bytes_written

    @property
    def trouble(self) -> str:
        """Why the latest frame could not be written."""
        return self._writer.last_error

    def replayed(self) -> None:
        """Everything that another process had not answered for has been shown again."""
        self._in_journal.clear()

    def close(self) -> None:
        """The status in the facts is the caller's to set before."""
        self._writer.close()

    def abandon(self) -> None:
        """In a forked process: what is open belongs to the one that forked."""


def _fields(event: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in event.items() if name not in ("kind", "step", "time")}
    return {"kind": event.get("kind"), "step": event.get("step"), "fields": fields}


def _mark(kind: Any, step: Any, fields: Mapping[str, Any]) -> bytes:
    """What tells an event from every other one: all but the time of its writing."""
    return msgspec.json.encode([kind, step, fields], enc_hook=str)
