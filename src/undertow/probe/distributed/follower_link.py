"""Another rank, seen from the one it sends to: a thread that sleeps until something comes, and what has come."""

import threading
import time
from collections import deque

from undertow.probe.distributed.rank_messages import Farewell, Message, Part, Roster, Word, decode, encode
from undertow.probe.distributed.rendezvous import Link, LinkBrokenError

_MOST_BYTES = 256 << 20  # of parts that wait here; beyond it the sender is made to wait

Key = tuple[int, int]


class FollowerLink:
    """`came` guards the fields and tells when they change."""

    def __init__(self, link: Link, came: threading.Condition) -> None:
        self.rank = link.rank
        self.parts: deque[tuple[Part, Roster | None, int]] = deque()  # with the roster that came before it, and bytes
        self.words: deque[Word] = deque()
        self.gone: str | None = None  # why it sends no more; "" when it has ended in peace
        self.speaks_for = 1  # ranks, with those that send by way of it
        self.is_late = False  # not waited for until it has caught up
        self.is_short = False  # has been told which slots a comparison is enough for
        self._link = link
        self._came = came
        self._roster: Roster | None = None
        self._bytes = 0
        self._seconds = 0.0
        link.listen(self._listen)

    @property
    def is_awaited(self) -> bool:
        """Whether its part of the frame at hand may still come."""
        return self.gone is None and not self.is_late and not self.parts

    def skip_to(self, key: Key) -> list[Roster]:
        """Leave out parts of frames before this one; rosters that came with them still count."""
        rosters: list[Roster] = []
        while self.parts and self.parts[0][0].key < key:
            _, roster = self._pop()
            rosters += [roster] if roster is not None else []
        if self.parts:
            self.is_late = False
        return rosters

    def take(self, key: Key) -> tuple[Part, Roster | None] | None:
        return self._pop() if self.parts and self.parts[0][0].key == key else None

    def spent(self) -> float:
        """Processor time of what has come since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def send(self, message: Message) -> None:
        if self.gone is None:
            try:
                self._link.send(encode(message))
            except LinkBrokenError as error:
                self._leave(str(error))

    def close(self) -> None:
        self._link.close()

    def _pop(self) -> tuple[Part, Roster | None]:
        part, roster, size = self.parts.popleft()
        self._bytes -= size
        self._came.notify_all()
        return part, roster

    def _leave(self, reason: str) -> None:
        with self._came:
            if self.gone is None:
                self.gone = reason
            self._came.notify_all()

    def _listen(self) -> None:
        try:
            while True:
                raw = self._link.receive()
                began = time.thread_time()
                message = decode(raw)
                seconds = time.thread_time() - began
                if isinstance(message, Farewell):
                    self._link.send(encode(Farewell()))
                    self._leave(message.reason)
                    return
                with self._came:
                    self._seconds += seconds
                    self._keep(message, len(raw))
                    self._came.notify_all()
                    while self._bytes > _MOST_BYTES and self.gone is None:
                        self._came.wait(1.0)
        except Exception as error:  # broken, or not one of ours: it is left out
            self._leave(str(error) or type(error).__name__)

    def _keep(self, message: Message, size: int) -> None:
        if isinstance(message, Roster):
            self._roster = message
        elif isinstance(message, Part):
            self.parts.append((message, self._roster, size))
            self.speaks_for = max(self.speaks_for, message.ranks)
            self._roster = None
            self._bytes += size
        elif isinstance(message, Word):
            self.words.append(message)
