"""From the background thread of a watch to its sinks.

Every sink has a thread and two short queues of its own, so none can hold up the training, the run or another sink.
What comes faster than a sink takes it is dropped, the oldest numbers first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from undertow.errors import UndertowError
from undertow.integrations.sinks.digest import digest, standing
from undertow.integrations.sinks.sink import Sink
from undertow.schema import Finding, Frame, Severity

LEAST_BETWEEN = 0.1  # seconds between two steps that are passed on
PATIENCE = 20.0  # seconds that all sinks together have to end
_MOST_NUMBERS = 1000  # waiting, of a sink
_MOST_FINDINGS = 100

Say = Callable[[str], None]


class Lane:
    """One sink, its thread, and what waits for it."""

    def __init__(self, name: str, make: Callable[[], Sink], say: Say) -> None:
        self.name = name
        self._make = make
        self._say = say
        self._numbers: deque[tuple[int, dict[str, float]]] = deque(maxlen=_MOST_NUMBERS)
        self._findings: deque[Finding] = deque(maxlen=_MOST_FINDINGS)
        self._wake = threading.Event()
        self._closing = False
        self._left_behind = False
        self._thread = threading.Thread(target=self._work, name=f"undertow sink {name}", daemon=True)
        self._thread.start()

    def numbers(self, step: int, values: dict[str, float]) -> None:
        self._numbers.append((step, values))
        self._wake.set()

    def finding(self, finding: Finding) -> None:
        self._findings.append(finding)
        self._wake.set()

    def close(self) -> None:
        """Pass on what waits, and end; `join` waits for it."""
        self._closing = True
        self._wake.set()

    def join(self, seconds: float) -> None:
        self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            self._left_behind = True
            self._say(f"the sink {self.name} did not end in time and is left behind")

    def _work(self) -> None:
        try:
            sink = self._make()
            while not (self._closing and not self._findings and not self._numbers):
                self._wake.wait()
                self._wake.clear()
                self._pass_on(sink)
            sink.close()
        except BaseException as error:  # whatever it is, it ends with this thread
            if not self._left_behind:
                self._say(f"the sink {self.name} is left out ({_words(error)}); your training goes on")

    def _pass_on(self, sink: Sink) -> None:
        while self._findings or self._numbers:
            if self._findings:
                sink.finding(self._findings.popleft())
            else:
                sink.numbers(*self._numbers.popleft())


class Feed:
    """Called in the background thread only, with what it has just written."""

    def __init__(self, sinks: Sequence[tuple[str, Callable[[], Sink]]], say: Say) -> None:
        self._say = say
        self._lanes = [Lane(name, make, say) for name, make in sinks]
        self._known: dict[tuple[str, str], Severity] = {}
        self._passed = 0.0
        self._held: Frame | None = None

    def frames(self, frames: Sequence[Frame]) -> None:
        """At most some steps a second; the newest is held, so that the last one always arrives."""
        try:
            self._choose(frames)
        except Exception as error:  # ours, then: the run is written all the same
            for lane in self._lanes:
                lane.close()
            if self._lanes:
                self._say(f"nothing more goes to the sinks ({_words(error)}); your training goes on")
            self._lanes = []

    def _choose(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if abs(frame.time - self._passed) >= LEAST_BETWEEN or "val_loss" in frame.scalars:
                self._passed, self._held = frame.time, None
                self._pass_on(frame)
            else:
                self._held = frame

    def finding(self, key: str, finding: Finding) -> None:
        """An alert when it is new, or worse than it was."""
        before = self._known.get((finding.code, key))
        self._known[finding.code, key] = finding.severity
        if before is None or finding.severity.rank > before.rank:
            for lane in self._lanes:
                lane.finding(finding)

    def close(self) -> None:
        if self._held is not None:
            self._pass_on(self._held)
        for lane in self._lanes:
            lane.close()
        deadline = time.monotonic() + PATIENCE
        for lane in self._lanes:
            lane.join(deadline - time.monotonic())

    def _pass_on(self, frame: Frame) -> None:
        values = {**digest(frame), **standing(self._known.values())}
        for lane in self._lanes:
            lane.numbers(frame.step, values)


def _words(error: BaseException) -> str:
    """In one line, without what a library puts around it."""
    line = " ".join(str(error).split())
    if len(line) > 200:
        line = line[:199] + "…"
    if isinstance(error, UndertowError):
        return line
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
