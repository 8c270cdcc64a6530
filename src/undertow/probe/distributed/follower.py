"""Every rank but the first: sends what it measures, with what others have sent to it, and is told how often to measure.

Runs in the background thread. When there is nobody to send to, nothing is measured any more, and the training goes on.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from undertow.probe.distributed.contribution import belongs_to_a_step
from undertow.probe.distributed.joint import Joint
from undertow.probe.distributed.rank_collector import RankCollector
from undertow.probe.distributed.rank_messages import (
    Farewell,
    Message,
    Pace,
    Roster,
    Separate,
    Witness,
    Word,
    decode,
    encode,
)
from undertow.probe.distributed.rank_tree import RankPlace
from undertow.probe.distributed.rendezvous import Link, LinkBrokenError, Rendezvous
from undertow.probe.mailbox import MOST_BYTES, Item
from undertow.probe.readings import NewLayers, Note, RawFrame

CLOSING_PATIENCE = 5.0  # seconds to wait until the last message has been sent


class Follower:
    def __init__(
        self,
        place: RankPlace,
        set_pace: Callable[[int, dict[str, int]], None],
        met: Callable[[str], None],
        lost: Callable[[str, list[Note]], None],
    ) -> None:
        """`met` is told the folder of the run; `lost`, once, why there is nobody to send to, and what is unsent."""
        self._rank = place.rank
        self._rendezvous: Rendezvous | None = Rendezvous(place)
        self._set_pace, self._met, self._lost = set_pace, met, lost
        self._link: Link | None = None
        self._ended = threading.Event()
        self._collector = RankCollector(place.rank)
        self._joint: Joint | None = None
        self._waiting: deque[Item] = deque()
        self._waiting_bytes = 0
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
            if self._rendezvous is not None and not self._meet(self._rendezvous):
                return
            while self._waiting and self._pass_on(self._waiting[0]):
                item = self._waiting.popleft()
                self._waiting_bytes -= item.nbytes if isinstance(item, RawFrame) else 0
            for word in self._collector.words():
                self._send(word)
        except LinkBrokenError:
            above = 0 if self._link is None else self._link.rank
            self._lose(f"rank {above}, which it sends to, is gone" if above else "the first rank is gone")
        except Exception as error:  # ours; the training goes on without us
            self._lose(f"{type(error).__name__}: {error}")

    def finish(self) -> None:
        """After the mailbox has closed: send what is left, and the last word."""
        if self._rendezvous is not None:
            self._rendezvous.wait(CLOSING_PATIENCE)
        self._collector.close()
        self.idle()
        while self._waiting and self._link is not None and not self._is_lost:
            self.idle()
        words = self._collector.part_ways()
        if self._link is not None and not self._is_lost:
            with contextlib.suppress(LinkBrokenError):  # it has ended, too
                for word in words:
                    self._send(word)
                self._send(Farewell())
                self._ended.wait(CLOSING_PATIENCE)
            self._link.close()

    def _meet(self, rendezvous: Rendezvous) -> bool:
        met = rendezvous.met()
        if met is None:
            return False
        self._rendezvous = None
        self._first_step = int(met.message.get("first_step", 0))
        self._met(str(met.message.get("folder", "")))
        if met.up is None:
            self._lose("the first rank has begun without this one" if met.message else "the ranks have not met")
            return False
        self._collector.join(met)
        self._link = met.up
        self._link.listen(partial(self._listen, self._link))
        return True

    def _lose(self, reason: str) -> None:
        self._is_lost = True
        if self._link is not None:
            self._link.close()
        self._collector.leave()
        notes = [item for item in self._waiting if isinstance(item, Note)]
        self._waiting.clear()
        self._waiting_bytes = 0
        if reason or notes:
            self._lost(reason, notes)

    def _send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(encode(message))

    def _pass_on(self, item: Item) -> bool:
        """False while it is worth waiting for somebody who sends to this rank."""
        if isinstance(item, NewLayers):
            self._collector.introduce(item)
        elif isinstance(item, Note):
            step = None if item.step is None else item.step + self._first_step
            self._send(Word(self._rank, item.kind, step, item.fields))
        elif belongs_to_a_step(item):
            return self._send_part(item)
        return True

    def _send_part(self, frame: RawFrame) -> bool:
        is_alone, ranks = self._collector.is_alone, self._collector.ranks
        witness = self._witness if is_alone else None
        parts = self._collector.parts(frame, frame.step + self._first_step, witness)
        if parts is None:
            return False
        part, roster = parts[0], ranks.own
        if not is_alone:
            apart = self._collector.apart
            if self._joint is None or (self._joint.version, self._joint.apart) != (ranks.version, apart):
                self._joint = Joint(ranks, apart)
            roster = self._joint.roster
        assert roster is not None
        if roster is not self._roster:
            if self._roster is None or roster.slots != self._roster.slots:
                self._witness = None  # its numbers stand for other tensors now
            self._roster = roster
            self._send(roster)
        if self._joint is not None:
            part = self._joint.part(parts, self._witness)
            self._collector.shorten(parts)
        self._send(part)
        return True

    def _listen(self, link: Link) -> None:
        try:
            while True:
                message = decode(link.receive())
                if isinstance(message, Pace):
                    self._set_pace(message.from_step, message.intervals)
                    self._collector.send(message)
                elif isinstance(message, Witness) and self._roster is not None:
                    witness = np.zeros(len(self._roster.slots), np.bool_)
                    witness[message.slots] = True
                    self._witness = witness
                elif isinstance(message, Separate):
                    self._collector.keep_apart(message.paths)
                elif isinstance(message, Farewell):
                    break
        except Exception:  # broken: sending will find out
            pass
        self._ended.set()
