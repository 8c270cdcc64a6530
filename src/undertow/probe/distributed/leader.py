"""The first rank: makes one frame of all ranks' parts of a step. Runs in the background thread."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from undertow.probe.distributed.contribution import belongs_to_a_step
from undertow.probe.distributed.rank_collector import CLOSING_PATIENCE, RankCollector
from undertow.probe.distributed.rank_messages import Pace, Word
from undertow.probe.distributed.rank_tree import RankPlace
from undertow.probe.distributed.rendezvous import Connections, Rendezvous
from undertow.probe.distributed.whole_frame import whole_frame
from undertow.probe.mailbox import Item
from undertow.probe.readings import NewLayers, Note, RawFrame
from undertow.schema import LayerGraph, LayerTable

Handle = Callable[[list[Item]], None]
Idle = Callable[[], None]


class Leader:
    def __init__(self, place: RankPlace, earlier: LayerTable, message: Mapping[str, Any]) -> None:
        self._closing = False
        self._is_broken = False
        self._failed: Callable[[Exception], None] | None = None
        self.merged: Callable[[float], None] | None = None  # is told the processor time each measured frame took
        self._message = message
        self._rendezvous: Rendezvous | None = Rendezvous(place)
        self._collector = RankCollector(0, earlier)
        self._own: deque[Item] = deque()
        self._new: NewLayers | None = None
        self._graph = LayerGraph()
        self._told = -1  # the version of the ranks that has been passed on
        self._pace: Pace | None = None

    def around(self, handle: Handle, idle: Idle, failed: Callable[[Exception], None]) -> tuple[Handle, Idle]:
        """The two functions that a mailbox calls, with the other ranks' parts worked in.

        `failed` is called with an error of ours; from then on only notes are passed on.
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
        if self._rendezvous is not None:
            self._rendezvous.wait(CLOSING_PATIENCE)
        self._closing = True
        self._collector.close()
        ready = self._take_carefully()
        while self._own:
            ready += self._take_carefully()
        handle(ready + _notes(self._collector.part_ways()))

    def set_pace(self, from_step: int, intervals: dict[str, int]) -> None:
        """From any thread; the background thread sends it."""
        self._pace = Pace(from_step, intervals)

    def _take_carefully(self) -> list[Item]:
        if not self._is_broken:
            try:
                return self._take()
            except Exception as error:
                if self._failed is None:
                    raise
                self._is_broken = True
                self._failed(error)
        notes: list[Item] = [item for item in self._own if isinstance(item, Note)]
        self._own.clear()
        return notes

    def _take(self) -> list[Item]:
        """Everything that is complete by now."""
        if self._rendezvous is not None and not self._meet(self._rendezvous):
            return []
        if self._pace is not None:
            pace, self._pace = self._pace, None
            self._collector.send(pace)
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
                self._new, self._graph = head, head.graph
                self._collector.introduce(head)
            else:
                out.append(head)
            self._own.popleft()
        return out + _notes(self._collector.words())

    def _meet(self, rendezvous: Rendezvous) -> bool:
        met = rendezvous.met(self._message)
        if met is None:
            if not self._closing:
                return False
            met = Connections()  # this rank ends before the others were there
            rendezvous.give_up()
        self._rendezvous = None
        self._collector.join(met)
        if rendezvous.absent:
            self._own.appendleft(Note("note", None, {"reason": f"{_ranks(rendezvous.absent)} not watched"}))
        return True

    def _whole(self, frame: RawFrame) -> RawFrame | None:
        """The frame of all ranks; None while it is worth waiting for one of them."""
        ranks = self._collector.ranks
        if not belongs_to_a_step(frame):
            return RawFrame(frame.step, frame.time, ranks.layout, frame.scalars)
        parts = self._collector.parts(frame, frame.step)
        if parts is None:
            return None
        began = time.thread_time()
        whole = whole_frame(frame, parts, ranks)
        self._collector.shorten(parts)
        if self.merged is not None and whole.has_gradient and len(parts) > 1:
            self.merged(time.thread_time() - began + self._collector.seconds)
        return whole

    def _new_layers(self) -> list[Item]:
        ranks = self._collector.ranks
        if self._told == ranks.version and self._new is None:
            return []
        facts = {} if self._new is None else self._new.facts
        self._told, self._new = ranks.version, None
        return [NewLayers(ranks.table, self._graph, {**facts, **ranks.facts()})]


def _notes(words: Iterable[Word]) -> list[Item]:
    return [Note(word.kind, word.step, {"rank": word.rank, **word.fields}) for word in words]


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank {named} is" if len(ranks) == 1 else f"ranks {named} are"
