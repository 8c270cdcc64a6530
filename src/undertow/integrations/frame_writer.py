"""A run recorded from frames that another framework measured. No torch needed.

What `watch` is for torch, without probes: frames are given as they come, and a thread has them recorded.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time

from undertow.recording.run_metadata import facts_here
from undertow.recording.run_recording import PATIENCE, RunRecording
from undertow.schema import Frame, LayerGraph, LayerTable, RunStatus
from undertow.settings import Settings
from undertow.show.bars import say

_MOST_WAITING = 1000  # frames; beyond this they are dropped and counted
_NAP = 0.2  # seconds; a frame must be on disk within one


class FrameWriter:
    def __init__(self, settings: Settings, device: str) -> None:
        self._facts = facts_here(settings, device=device)
        # Without a GPU the training takes every processor, and another process would be in its way.
        self._recording = RunRecording(settings, self._facts, is_crowded=lambda: "cpu" in device.lower())
        self.folder = self._recording.folder
        self._waiting: queue.Queue[Frame | LayerTable | None] = queue.Queue(_MOST_WAITING)
        self._dropped = 0
        self._closed = self._stumbled = False
        self._thread = threading.Thread(target=self._work, name="undertow", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        self._recording.start_upload(self.close)

    def put(self, item: Frame | LayerTable) -> None:
        """From any thread; never waits."""
        if self._closed or self._stumbled:
            return
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if threading.current_thread() is self._thread:  # a callback asked for it, which cannot wait for its own end
            threading.Thread(target=self._close, name="undertow closing").start()
        else:
            self._close()

    def _close(self) -> None:
        atexit.unregister(self.close)
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=0.0 if self._stumbled else PATIENCE)
        self._thread.join(PATIENCE)
        if self._dropped:
            self._facts.add_reason(f"{self._dropped} frames came faster than they could be written")
        self._recording.close(RunStatus.FINISHED, in_time=not self._thread.is_alive())

    def _work(self) -> None:
        try:
            while self._record_what_waits():
                pass
            self._recording.collect(everything=True)
        except Exception as error:  # ours: the training goes on without us, and the user hears of it once
            self._stumbled = True
            self._facts.status = RunStatus.DETACHED
            self._facts.message = f"Undertow stepped aside after an internal error ({type(error).__name__}: {error})"
            say(f"undertow: error UT100: {self._facts.message}; your training goes on")

    def _record_what_waits(self) -> bool:
        """Some frames together, which costs hardly more than one. False at the end."""
        items = [self._waiting.get()]
        if items[0] is not None and not self._closed:
            time.sleep(_NAP)
        while not self._waiting.empty():
            items.append(self._waiting.get())
        for item in items:  # layers are told of before any frame has them
            if isinstance(item, LayerTable):
                self._recording.set_layers(item, LayerGraph())
        frames = [item for item in items if isinstance(item, Frame)]
        if frames:
            self._facts.steps_seen = max(self._facts.steps_seen, frames[-1].step + 1)
            self._recording.record(frames)
        if self._recording.facts_are_due():
            self._recording.write_facts()
        return None not in items
