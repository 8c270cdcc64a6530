"""A run written from frames that another framework measured. No torch needed.

What `watch` is for torch, without probes: frames are given as they come, a thread writes and judges them.
"""

from __future__ import annotations

import atexit
import os
import platform
import queue
import sys
import threading
import time
from pathlib import Path

from undertow import __version__
from undertow.detect.engine import Engine
from undertow.detect.journal import to_record
from undertow.run import open_run
from undertow.schema.facts import RunFacts, RunStatus
from undertow.schema.frames import Frame
from undertow.schema.graph import LayerGraph
from undertow.schema.layers import LayerTable
from undertow.settings import Settings
from undertow.show.bars import say
from undertow.show.closing import closing_line
from undertow.store.latest import new_run_folder, point_latest
from undertow.store.writer import RunWriter

_MOST_WAITING = 1000  # frames; beyond this they are dropped and counted
_NAP = 0.2  # seconds; a frame must be on disk within one
_PATIENCE = 30.0  # seconds to write what waits, at the end


class FrameWriter:
    def __init__(self, settings: Settings, device: str) -> None:
        self.folder = Path(settings.run_dir or new_run_folder(settings.directory, settings.name or ""))
        self._quiet = settings.quiet
        self._facts = RunFacts(
            undertow=__version__,
            name=settings.name or "",
            created=time.time(),
            process=os.getpid(),
            host=platform.node(),
            command=list(sys.argv),
            python=platform.python_version(),
            device=device,
            settings=settings.to_record(),
        )
        self._writer = RunWriter(self.folder, self._facts, disk_budget=settings.disk_budget or None)
        if settings.run_dir is None:
            point_latest(settings.directory, self.folder)
        self._engine = Engine()
        self._waiting: queue.Queue[Frame | LayerTable | None] = queue.Queue(_MOST_WAITING)
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="undertow", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, item: Frame | LayerTable) -> None:
        """From any thread; never waits."""
        if self._closed:
            return
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._facts.frames_dropped += 1

    def close(self) -> None:
        """Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._waiting.put(None, timeout=_PATIENCE)
        except queue.Full:
            return
        self._thread.join(_PATIENCE)
        if not self._quiet and not self._thread.is_alive():
            say(f"undertow: {closing_line(open_run(self.folder).diagnose(), self.folder)}")

    def _work(self) -> None:
        try:
            while self._take_what_waits():
                pass
        except Exception as error:  # ours: the training goes on without us, and the user hears of it once
            self._closed = True
            self._facts.status = RunStatus.DETACHED
            self._facts.message = f"Undertow stepped aside after an internal error ({type(error).__name__}: {error})"
            say(f"undertow: error UT100: {self._facts.message}; your training goes on")
        if self._facts.status is RunStatus.RUNNING:
            self._facts.status = RunStatus.FINISHED
        self._facts.ended = time.time()
        self._writer.close()

    def _take_what_waits(self) -> bool:
        """Some frames together, which costs hardly more than one. False at the end."""
        items = [self._waiting.get()]
        if items[0] is not None and not self._closed:
            time.sleep(_NAP)
        while not self._waiting.empty():
            items.append(self._waiting.get())
        for item in items:
            if isinstance(item, LayerTable):
                self._writer.set_layers(item, LayerGraph())
                self._engine.set_layers(item, LayerGraph())
        frames = [item for item in items if isinstance(item, Frame)]  # layers are told of before any frame has them
        if frames:
            self._writer.append_many(frames)
            self._facts.steps_seen = max(self._facts.steps_seen, frames[-1].step + 1)
            for frame, changes in self._engine.observe_many(frames):
                for change in changes:
                    self._writer.event("finding", frame.step, **to_record(change))
        return None not in items
