"""The account of a run, kept by another process; nothing is forgotten here until that has answered for it."""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.chronicler import protocol
from undertow.chronicler.account import Account, News, Told
from undertow.chronicler.known import Known
from undertow.chronicler.start import start
from undertow.chronicler.wire import GoneError, Wire
from undertow.schema.findings import Finding
from undertow.schema.frames import Frame
from undertow.schema.graph import LayerGraph
from undertow.schema.layers import LayerTable

_MOST_WAITING = 32 << 20  # bytes sent and not answered for; beyond this, wait
_PATIENCE = 20.0  # seconds without an answer to what was asked
_START_PATIENCE = 60.0  # seconds until the first one: a busy machine is slow to import
_END_PATIENCE = 5.0


@dataclass(slots=True)
class _Sent:
    replay: Callable[[Account], list[Told]]
    frames: Sequence[Frame]
    size: int


class Remote:
    """Does what `Account` does, in the same order. Not for two threads at once.

    When the other process is gone, `lost` says why, and the caller goes on with an account of its own: `unanswered`
    shows that what has not been answered for.
    """

    def __init__(self, known: Known, disk_budget: int | None) -> None:
        """Raises OSError when no process can be started."""
        self.known = known
        self.news: deque[News] = deque()
        self.lost = ""
        self.ready = False
        self.bytes_written = 0
        self.seconds = 0.0  # processor time that frames have taken there
        self.last_answered = -1  # sequence of a frame
        self.seam_due = False
        self._bytes_before = 0
        self._disk_budget = disk_budget
        self._sent: deque[_Sent] = deque()
        self._waiting = 0  # bytes
        self._found: list[Finding] = []
        self._started = time.monotonic()
        self._process, end = start()
        self._wire = Wire(end)

    def begin(self, before: Account) -> None:
        """Go on where an account of this process, closed by now, has come to."""
        self._bytes_before = self.bytes_written = before.bytes_written
        self.last_answered = before.last_sequence
        self.seam_due = before.seam_due
        self.news.extend(before.news)
        folder = str(self.known.folder.resolve())
        self._post(protocol.Begin(folder, self.known.facts, self._disk_budget, self.seam_due), _nothing)

    # -- what goes there ----------------------------------------------------------------------------------

    def record(self, frames: Sequence[Frame]) -> None:
        self.known.take_frames(frames)
        message, values = protocol.frames_message(frames)
        self._post(message, lambda account: account.judge(frames), values, frames)

    def take_layers(self, layers: LayerTable, graph: LayerGraph) -> None:
        self.known.layers, self.known.graph = layers, graph
        message = protocol.layers_message(layers, graph, self.known.facts.optimizers)
        self._post(message, lambda account: _silently(account.take_layers(layers, graph)))

    def write_event(self, kind: str, step: int | None, fields: dict[str, Any]) -> None:
        message = protocol.Event(kind, step, fields, explains=False)
        self._post(message, lambda account: _silently(account.write_event(kind, step, fields)))

    def take_event(self, kind: str, step: int | None, fields: dict[str, Any]) -> None:
        self.known.events.append({"kind": kind, "step": step, **fields})
        message = protocol.Event(kind, step, fields, explains=True)
        self._post(message, lambda account: _silently(account.write_event(kind, step, fields)))

    def write_facts(self) -> None:
        self._post(protocol.Facts(self.known.facts), _nothing)

    def _post(
        self,
        message: protocol.Request,
        replay: Callable[[Account], list[Told]],
        body: Sequence[NDArray[np.float32]] = (),
        frames: Sequence[Frame] = (),
    ) -> None:
        size = sum(values.nbytes for values in body)
        self._sent.append(_Sent(replay, frames, size))
        self._waiting += size
        if self.lost:
            return
        try:
            self._wire.send(protocol.encode(message), body, self._patience())
            self.look()
            while self._waiting > _MOST_WAITING and len(self._sent) > 1 and not self.lost:
                self._hear()
        except GoneError as gone:
            self._take_answers()
            self._lose(str(gone))

    # -- what comes back ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Take what has been answered, without waiting."""
        if self.lost:
            return
        try:
            self._wire.look()
        except GoneError as gone:
            self._take_answers()
            self._lose(str(gone))
        self._take_answers()

    def settle(self) -> None:
        """Wait until everything is answered for."""
        try:
            while self._sent and not self.lost:
                self._hear()
        except GoneError as gone:
            self._lose(str(gone))

    def _hear(self) -> None:
        self._wire.wait(self._patience())
        self._take_answers()

    def _take_answers(self) -> None:
        while self._wire.arrived:
            head, _ = self._wire.arrived.popleft()
            answer: protocol.Answer = protocol.decode_answer(head)
            match answer:
                case protocol.Ready():
                    self.ready = True
                case protocol.Failed():
                    self._lose(f"it failed: {answer.why.strip().splitlines()[-1]}")
                case protocol.Done():
                    self._tick_off(answer)

    def _tick_off(self, answer: protocol.Done) -> None:
        sent = self._sent.popleft()
        self._waiting -= sent.size
        self.bytes_written = self._bytes_before + answer.bytes_written
        self.known.facts.frames_dropped, self.known.facts.seams = answer.frames_dropped, answer.seams
        if sent.frames:
            self.seconds += answer.seconds
            self.last_answered, self.seam_due = sent.frames[-1].sequence, False
        if sent.frames or answer.told:
            self.news.append(News(answer.told, sent.frames))
        if answer.found is not None:
            self._found = answer.found

    def found(self) -> list[Finding]:
        """What has been found by all that was sent. After the end, what had been found by then."""
        if not self._closed:
            self._post(protocol.Ask(), _nothing)
            self.settle()
        return self._found

    @property
    def _closed(self) -> bool:
        return self._process.returncode is not None

    def _patience(self) -> float:
        return _PATIENCE if self.ready else _START_PATIENCE

    @property
    def is_late(self) -> bool:
        return not self.ready and time.monotonic() - self._started > _START_PATIENCE

    # -- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._post(protocol.Close(self.known.facts), _nothing)
        self.settle()
        if not self.lost:
            self._end(_END_PATIENCE)

    def unanswered(self, account: Account) -> None:
        """Show it to the account that goes on in this process."""
        account.news.extend(self.news)
        for sent in self._sent:
            account.news.append(News(sent.replay(account), sent.frames))
        account.replayed()

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.lost = why
            self.stop()

    def stop(self) -> None:
        """At once. What it had not written yet is not written."""
        self._process.kill()
        self._end(None)

    def _end(self, patience: float | None) -> None:
        self._wire.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        """In a forked process: the line belongs to the one that forked, and so does the other process."""
        self._wire.close()
        self._process.returncode = 0


def _nothing(account: Account) -> list[Told]:
    return []


def _silently(done: None) -> list[Told]:
    return []
