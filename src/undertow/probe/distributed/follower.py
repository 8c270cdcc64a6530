"""Every rank but the first: sends what it measures, and hears how often to measure.

Runs in the background thread. When the first rank is gone, nothing is measured any more, and the training goes on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from undertow.probe.catalogue import Layout
from undertow.probe.distributed.contribution import Numbering, belongs_to_a_step, part_of, roster_of
from undertow.probe.distributed.meeting import Link, LinkBrokenError, Meeting
from undertow.probe.distributed.messages import Farewell, Message, Pace, Roster, Witness, Word, decode, encode
from undertow.probe.distributed.place import Place
from undertow.probe.mailbox import MOST_BYTES, Item
from undertow.probe.readings import NewLayers, Note, RawFrame
from undertow.schema.layers import LayerTable

CLOSING_PATIENCE = 5.0  # seconds to wait for the first rank to hear the last word


class Follower:
    def __init__(
        self,
        place: Place,
        set_pace: Callable[[int, dict[str, int]], None],
        met: Callable[[str], None],
        lost: Callable[[str, list[Note]], None],
    ) -> None:
        """`met` is told the folder of the run; `lost`, once, why there is nobody to send to, and what is unsent."""
        self._rank = place.rank
        self._meeting: Meeting | None = Meeting(place)
        self._set_pace, self._met, self._lost = set_pace, met, lost
        self._link: Link | None = None
        self._ended = threading.Event()
        self._numbering = Numbering()
        self._waiting: deque[Item] = deque()
        self._waiting_bytes = 0
        self._table = LayerTable()
        self._new: NewLayers | None = None
        self._layout: Layout | None = None
        self._roster: Roster | None = None
        self._witness: NDArray[np.bool_] | None = None
        self._is_lost = False
        self._first_step = 0  # of a run that is continued; this rank counts from 0

    def handle(self, items: list[Item]) -> None:
        for item in items:
            size = item.nbytes if isinstance(item, RawFrame) else 0
            if not self._is_lost and self._waiting_bytes + size <= MOST_BYTES:
                self._waiting.append(item)
                self._waiting_bytes += size
            elif isinstance(item, Note):
                self._waiting.append(item)
        self.idle()

    def idle(self) -> None:
        if self._is_lost:
            self._lose("")
            return
        try:
            if self._meeting is not None and not self._meet(self._meeting):
                return
            while self._waiting:
                self._pass_on(self._waiting[0])
                item = self._waiting.popleft()
                self._waiting_bytes -= item.nbytes if isinstance(item, RawFrame) else 0
        except LinkBrokenError:
            self._lose("the first rank is gone")
        except Exception as error:  # ours; the training goes on without us
            self._lose(f"{type(error).__name__}: {error}")

    def finish(self) -> None:
        """After the mailbox has closed: send what is left, and the last word."""
        if self._meeting is not None:
            self._meeting.wait(CLOSING_PATIENCE)
        self.idle()
        if self._link is not None and not self._is_lost:
            try:
                self._link.send(encode(Farewell()))
                self._ended.wait(CLOSING_PATIENCE)
            except LinkBrokenError:
                pass  # the first rank has ended, too
            self._link.close()

    def _meet(self, meeting: Meeting) -> bool:
        met = meeting.links()
        if met is None:
            return False
        self._meeting = None
        links, message = met
        self._first_step = int(message.get("first_step", 0))
        self._met(str(message.get("folder", "")))
        if not links:
            self._lose("the first rank has begun without this one" if message else "the ranks have not met")
            return False
        self._link = links[0]
        self._link.listen(partial(self._listen, self._link))
        return True

    def _lose(self, reason: str) -> None:
        self._is_lost = True
        if self._link is not None:
            self._link.close()
        notes = [item for item in self._waiting if isinstance(item, Note)]
        self._waiting.clear()
        self._waiting_bytes = 0
        if reason or notes:
            self._lost(reason, notes)

    def _send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(encode(message))

    def _pass_on(self, item: Item) -> None:
        if isinstance(item, NewLayers):
            self._new, self._table, self._layout = item, item.table, None
        elif isinstance(item, Note):
            step = None if item.step is None else item.step + self._first_step
            self._send(Word(self._rank, item.kind, step, item.fields))
        elif belongs_to_a_step(item):
            self._send_part(item)

    def _send_part(self, frame: RawFrame) -> None:
        if frame.layout is not self._layout:
            self._layout = frame.layout
            roster = roster_of(self._rank, self._table, frame.layout, self._new)
            if roster != self._roster:
                if self._roster is None or roster.slots != self._roster.slots:
                    self._witness = None  # its numbers stand for other tensors now
                self._roster = roster
                self._send(roster)
        part = part_of(frame, self._rank, self._numbering.next(frame.step), self._witness)
        part.step += self._first_step
        self._send(part)

    def _listen(self, link: Link) -> None:
        try:
            while True:
                message = decode(link.receive())
                if isinstance(message, Pace):
                    self._set_pace(message.from_step, message.intervals)
                elif isinstance(message, Witness) and self._roster is not None:
                    witness = np.zeros(len(self._roster.slots), np.bool_)
                    witness[message.slots] = True
                    self._witness = witness
                elif isinstance(message, Farewell):
                    break
        except Exception:  # broken: sending will find out
            pass
        self._ended.set()
