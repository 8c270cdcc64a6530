"""From the training thread to the background thread, which sleeps, never spins.

The training does not wait for it, unless both need the same processors. Then whatever the thread does holds up the
training for longer than it takes: torch's threads wait for the one it has displaced. So the two take turns: the
training stands still while the thread works over many frames at once, and has all processors in between.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from undertow.probe.cuda_events import waited_for
from undertow.probe.readings import NewLayers, Note, RawFrame

Item = RawFrame | NewLayers | Note

_NAP = 0.2  # seconds; a frame must be on disk within one,
_NAP_BETWEEN_TURNS = 0.75  # even where a batch keeps the training waiting: fewer of them, then
_WAKE_AT = 256  # items, or
_WAKE_AT_BYTES = 32 << 20
_TURN = 0.1  # seconds; the training stands still no longer than this
_PATIENCE = 0.05  # seconds for which the thread waits for its turn; steps may be long
MOST_BYTES = 256 << 20  # beyond this frames are dropped and counted: memory is the user's


class Mailbox:
    def __init__(
        self,
        handle: Callable[[list[Item]], None],
        idle: Callable[[], None],
        raise_critical: Callable[[], None] | None = None,
        settle: Callable[[], None] = lambda: None,
        takes_turns: Callable[[], bool] = lambda: False,
        stumble: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """`raise_critical`: where findings stop the training; every item is then handled at once, and this is called
        on the training thread after each frame.
        `settle`: wait for what was handled to have its effect; for when somebody waits for that.
        `takes_turns`: whether the thread and the training need the same processors.
        `stumble`: called with an error of the thread's own, which ends it.
        """
        self._raise_critical, self._is_prompt = raise_critical, raise_critical is not None
        self._handle = handle
        self._idle = idle
        self._settle = settle
        self._takes_turns = takes_turns
        self._stumble = stumble
        self._wants_turn = False
        self._rests = threading.Event()
        self._items: deque[tuple[Item, int]] = deque()
        self._held: list[Item] | None = None  # by the training thread
        self._posted_bytes = 0  # each written by one thread only: `+=` by two would lose counts
        self._handled_bytes = 0
        self._wake = threading.Event()
        self._closing = False
        self._flushes = threading.Condition()
        self._asked = 0  # flushes so far, and how many of them are done
        self._answered = 0
        self.dropped = 0
        self.thread = threading.Thread(target=self._work, name="undertow", daemon=True)
        self.thread.start()

    @property
    def is_holding(self) -> bool:
        return self._held is not None

    def hold(self) -> None:
        """Keep what is posted until `release` or `discard`."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        held, self._held = self._held, None
        for item in held or ():
            self.post(item)

    def discard(self, everything: bool) -> None:
        """Held frames, and `everything` else that is held; layers and notes are released otherwise."""
        self._held = [item for item in self._held or () if not (everything or isinstance(item, RawFrame))]
        self.release()

    def post(self, item: Item, at_once: bool = False) -> float:
        """Returns the seconds for which the training has stood still. `at_once`: even while items are held."""
        if self._held is not None and not at_once:
            self._held.append(item)
            return 0.0
        size = item.nbytes if isinstance(item, RawFrame) else 0
        waiting = self._posted_bytes - self._handled_bytes + size
        if waiting > MOST_BYTES and size:
            self.dropped += 1
            return 0.0
        self._items.append((item, size))
        self._posted_bytes += size
        if self._is_prompt or self._wants_turn or len(self._items) >= _WAKE_AT or waiting >= _WAKE_AT_BYTES:
            return self._wake_up(is_frame=size > 0)
        return 0.0

    def _wake_up(self, is_frame: bool) -> float:
        if self._is_prompt or not is_frame or not self._takes_turns():
            self._wake.set()
            if self._raise_critical is not None and is_frame:
                self._raise_critical()
            return 0.0
        began = time.perf_counter()
        self._wants_turn = False
        self._rests.clear()
        self._wake.set()
        self._rests.wait(_TURN)
        return time.perf_counter() - began

    def flush(self, timeout: float) -> bool:
        """Wait until everything posted so far has been handled."""
        if not self.thread.is_alive() or threading.current_thread() is self.thread:
            return True
        with self._flushes:
            self._asked += 1
            mine = self._asked
            self._wake.set()
            return self._flushes.wait_for(lambda: self._answered >= mine, timeout)

    def close(self, timeout: float) -> bool:
        """Handle what is left and end the thread; False when it did not end in time."""
        self._closing = True
        self._wake.set()
        self.thread.join(timeout)
        return not self.thread.is_alive()

    def _work(self) -> None:
        try:
            with np.errstate(all="ignore"):  # non-finite numbers are data, not a reason to warn the user
                self._work_on()
        except Exception as error:
            self._stumble(error)
        finally:
            self._rests.set()
            self._answer(sys.maxsize)  # nothing comes after the end

    def _work_on(self) -> None:
        while True:
            nap = _NAP_BETWEEN_TURNS if self._takes_turns() else _NAP
            if not self._wake.wait(nap) and self._items and self._takes_turns():
                self._wants_turn = True
                self._wake.wait(_PATIENCE)
                self._wants_turn = False
            self._wake.clear()
            closing, asked = self._closing, self._asked
            self._take()
            while closing and self._items:
                self._take()
            if closing or asked > self._answered:
                self._settle()
                self._answer(asked)
            self._idle()
            self._rests.set()
            if closing:
                return

    def _answer(self, asked: int) -> None:
        with self._flushes:
            self._answered = asked
            self._flushes.notify_all()

    def _take(self) -> None:
        """Handle what has come in by now. What comes in meanwhile waits: a few frames at a time would cost far more."""
        batch = [self._items.popleft() for _ in range(len(self._items))]
        if batch:
            with waited_for(item.complete for item, _ in batch if isinstance(item, RawFrame)):
                self._handle([item for item, _ in batch])
            self._handled_bytes += sum(size for _, size in batch)
