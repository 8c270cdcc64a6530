"""The first rank: makes one frame of all ranks' parts of a step.

Runs in the background thread. A rank that dies is left out from then on; one that is silent for long is left out
until it has caught up. Nobody waits for ever, and the training waits for nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from undertow.probe.catalogue import Layout
from undertow.probe.distributed.contribution import Numbering, belongs_to_a_step, part_of, roster_of
from undertow.probe.distributed.crew import Crew
from undertow.probe.distributed.follower_link import FollowerLink, Key
from undertow.probe.distributed.kinship import are_replicas
from undertow.probe.distributed.meeting import Meeting
from undertow.probe.distributed.messages import Pace, Part, Roster, Witness
from undertow.probe.distributed.place import Place
from undertow.probe.distributed.whole_frame import whole_frame
from undertow.probe.mailbox import Item
from undertow.probe.readings import NewLayers, Note, RawFrame
from undertow.schema.graph import LayerGraph
from undertow.schema.layers import LayerTable

PATIENCE = 30.0  # seconds to wait for a rank's part of a step
CLOSING_PATIENCE = 8.0  # seconds to wait for the others, once this rank has ended
_NAP = 0.2

Handle = Callable[[list[Item]], None]
Idle = Callable[[], None]


class Leader:
    def __init__(self, place: Place, earlier: LayerTable, message: Mapping[str, Any]) -> None:
        self._closing, self._closing_since = False, 0.0
        self._is_broken = False
        self._failed: Callable[[Exception], None] = _raise
        self.merged: Callable[[float], None] | None = None  # is told the processor time each measured frame took
        self._message = message
        self._meeting: Meeting | None = Meeting(place)
        self._followers: list[FollowerLink] = []
        self._crew = Crew(earlier)
        self._numbering = Numbering()
        self._own: deque[Item] = deque()
        self._key: Key | None = None  # of the frame at the head of the queue
        self._head_since = 0.0
        self._table = earlier
        self._new: NewLayers | None = None
        self._layout: Layout | None = None
        self._graph = LayerGraph()
        self._told = -1  # the version of the crew that has been passed on
        self._came = threading.Condition()
        self._pace: Pace | None = None
        self._lost: set[int] = set()  # ranks whose end has been noted

    def around(self, handle: Handle, idle: Idle, failed: Callable[[Exception], None]) -> tuple[Handle, Idle]:
        """The two functions that a mailbox calls, with the other ranks' parts worked in.

        `failed` is told of an error of ours; from then on only notes are passed on.
        """
        self._failed = failed

        def handle_all(items: list[Item]) -> None:
            self._own.extend(items)
            idle_also()

        def idle_also() -> None:
            ready = self._take_carefully()
            if ready:
                handle(ready)
            idle()

        return handle_all, idle_also

    def finish(self, handle: Handle) -> None:
        """After the mailbox has closed: what is still missing is waited for, but not for long."""
        if self._meeting is not None:
            self._meeting.wait(CLOSING_PATIENCE)
        self._closing, self._closing_since = True, time.monotonic()
        ready = self._take_carefully()
        while self._own:
            ready += self._take_carefully()
        handle(ready + self._part_ways())

    def set_pace(self, from_step: int, intervals: dict[str, int]) -> None:
        """From any thread; the background thread sends it."""
        self._pace = Pace(from_step, intervals)

    # -- in order -----------------------------------------------------------------------------------------

    def _take_carefully(self) -> list[Item]:
        if not self._is_broken:
            try:
                return self._take()
            except Exception as error:
                self._is_broken = True
                self._failed(error)
        notes: list[Item] = [item for item in self._own if isinstance(item, Note)]
        self._own.clear()
        return notes

    def _take(self) -> list[Item]:
        """Everything that is complete by now."""
        if self._meeting is not None and not self._meet(self._meeting):
            return []
        if self._pace is not None:
            pace, self._pace = self._pace, None
            for one in self._followers:
                one.send(pace)
        out: list[Item] = []
        while self._own:
            head = self._own[0]
            if isinstance(head, RawFrame):
                frame = self._whole(head)
                if frame is None:
                    break
                out += self._new_layers()
                out.append(frame)
            elif isinstance(head, NewLayers):
                self._new, self._table, self._graph, self._layout = head, head.table, head.graph, None
            else:
                out.append(head)
            self._own.popleft()
        return out + self._notes()

    def _meet(self, meeting: Meeting) -> bool:
        met = meeting.links(self._message)
        if met is None:
            if not self._closing:
                return False
            met = [], {}  # this rank ends before the others were there
            meeting.give_up()
        self._meeting = None
        self._followers = [FollowerLink(link, self._came) for link in met[0]]
        if meeting.absent:
            self._own.appendleft(Note("note", None, {"reason": f"{_ranks(meeting.absent)} not watched"}))
        return True

    def _whole(self, frame: RawFrame) -> RawFrame | None:
        """The frame of all ranks; None while it is worth waiting for one of them."""
        if not belongs_to_a_step(frame):
            return RawFrame(frame.step, frame.time, self._crew.layout, frame.scalars)
        if self._key is None:
            self._key, self._head_since = (frame.step, self._numbering.next(frame.step)), time.monotonic()
        if not self._wait(self._key):
            return None
        key, self._key = self._key, None
        began = time.thread_time()
        own = part_of(frame, 0, key[1])
        own_roster = self._enter_own(frame.layout)
        parts = [own]
        for one in self._followers:
            with self._came:
                found = one.take(key)
            if found is not None:
                part, roster = found
                if roster is not None:
                    self._enter(roster, part, own_roster, own)
                if part.rank in self._crew.berths:
                    parts.append(part)
        whole = whole_frame(frame, parts, self._crew)
        self._shorten(parts)
        with self._came:
            decoding = sum(one.spent() for one in self._followers)
        if self.merged is not None and whole.has_gradient and len(parts) > 1:
            self.merged(time.thread_time() - began + decoding)
        return whole

    def _wait(self, key: Key) -> bool:
        until = time.monotonic() + _NAP
        with self._came:
            while True:
                deadline = self._deadline()
                for one in self._followers:
                    for roster in one.skip_to(key):
                        self._crew.enter(roster)
                missing = [one for one in self._followers if one.awaited(key)]
                now = time.monotonic()
                if not missing:
                    return True
                if now >= deadline:
                    for one in missing:
                        one.is_late = True
                    return True
                if now >= until:
                    return False
                self._came.wait(min(until, deadline) - now)

    def _deadline(self) -> float:
        """Until when a part is worth waiting for."""
        if not self._closing:
            return self._head_since + PATIENCE
        return self._closing_since + CLOSING_PATIENCE

    # -- who holds what -----------------------------------------------------------------------------------

    def _enter_own(self, layout: Layout) -> Roster:
        if layout is not self._layout:
            self._layout = layout
            roster = roster_of(0, self._table, layout, self._new)
            if self._crew.own != roster:
                self._crew.enter(roster)
        assert self._crew.own is not None
        return self._crew.own

    def _enter(self, roster: Roster, part: Part, own_roster: Roster, own: Part) -> None:
        if roster.rank not in self._crew.prefixes:
            alike = are_replicas(own_roster, own, roster, part)
            self._crew.prefixes[roster.rank] = "" if alike else f"rank{roster.rank}."
        self._crew.enter(roster)

    def _new_layers(self) -> list[Item]:
        if self._told == self._crew.version and self._new is None:
            return []
        facts = {} if self._new is None else self._new.facts
        self._told, self._new = self._crew.version, None
        return [NewLayers(self._crew.table, self._graph, {**facts, **self._crew.facts()})]

    def _shorten(self, parts: list[Part]) -> None:
        """Tell ranks whose tensors all come from a lower rank that a comparison is enough from now on."""
        sent = {part.rank for part in parts}
        seen = np.zeros(self._crew.portions, np.bool_)
        for rank in sorted(sent):
            portions = self._crew.berths[rank].portions
            follower = next((one for one in self._followers if one.rank == rank), None)
            if follower is not None and not follower.is_short:
                follower.is_short = True
                follower.send(Witness(np.flatnonzero(seen[portions])))
            seen[portions] = True

    # -- the rest -----------------------------------------------------------------------------------------

    def _notes(self) -> list[Item]:
        notes: list[Item] = []
        with self._came:
            for one in self._followers:
                while one.words:
                    word = one.words.popleft()
                    notes.append(Note(word.kind, word.step, {"rank": word.rank, **word.fields}))
                if one.gone and one.rank not in self._lost:
                    self._lost.add(one.rank)
                    reason = f"rank {one.rank} was lost while training: what it held is missing from there on"
                    notes.append(Note("note", None, {"reason": reason, "rank": one.rank}))
        return notes

    def _part_ways(self) -> list[Item]:
        """Let the others end, too; those that give no sign of life are left behind."""
        with self._came:
            while any(one.gone is None for one in self._followers):
                left = self._deadline() - time.monotonic()
                if left <= 0:
                    break
                self._came.wait(left)
        notes = self._notes()
        for one in self._followers:
            one.close()
        self._followers = []
        return notes


def _raise(error: Exception) -> None:
    raise error


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank {named} is" if len(ranks) == 1 else f"ranks {named} are"
