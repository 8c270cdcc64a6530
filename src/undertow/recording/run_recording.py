"""A run while it is recorded: frames come in, are judged and written by its recorder, and what came of them is told.

Everything here happens in a background thread, apart from making it, asking it what is known so far, and closing it.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from undertow.errors import CriticalFindingError, SettingError
from undertow.recording.messages import Close, Diagnose, RecordFrames, Request, SetLayers, WriteEvent, WriteFacts
from undertow.recording.notifications import Notifications
from undertow.recording.recorder_client import RecorderClient
from undertow.recording.run_metadata import folder_of
from undertow.run_context import RunContext
from undertow.schema import Diagnosis, Finding, Frame, LayerGraph, LayerTable, RunFacts, RunStatus, StepRange
from undertow.settings import Settings
from undertow.show.bars import say
from undertow.show.closing import closing_line
from undertow.store.latest import point_latest
from undertow.store.run_documents import RUN_FILE, write_facts

PATIENCE = 30.0  # seconds for the last frames, and again for the last files of an upload
_FACTS_EVERY = 2.0  # seconds between two writes of run.json


class RunRecording:
    def __init__(self, settings: Settings, facts: RunFacts, is_crowded: Callable[[], bool]) -> None:
        """`is_crowded`: whether another process would find no processor that the training leaves alone."""
        if settings.resume and settings.run_dir is None:
            raise SettingError("resume was asked for without a run folder", way_out="Name the folder with run_dir")
        self.settings, self.facts = settings, facts
        self.folder, self._uploader = folder_of(settings)
        # With "raise", what is found must be known at once, so it is found here.
        process = "never" if settings.on_critical == "raise" else settings.chronicler
        budget = settings.disk_budget or None
        self._client = RecorderClient(self.folder, facts, settings.resume, budget, process, is_crowded)
        self._lock = threading.RLock()  # of the client
        self.layers = self._client.layers  # those of the run that is resumed
        self.first_step = 0 if self._client.last_step is None else self._client.last_step + 1
        self.next_sequence = self._client.last_sequence + 1  # of a frame
        if settings.run_dir is None:
            point_latest(settings.directory, self.folder)
        self._notifications = Notifications(settings, self.folder, facts)
        self._steps = StepRange(None, None, 0)
        self._facts_written = time.monotonic()
        self._closed = False

    # -- what comes in ------------------------------------------------------------------------------------

    def record(self, frames: Sequence[Frame]) -> None:
        """Have frames judged and written, and tell what that changed."""
        if not frames:
            return
        self.next_sequence = frames[-1].sequence + 1
        last, count = self._steps.last, self._steps.recorded
        for frame in frames:
            if frame.step != last:
                last, count = frame.step, count + 1
        self._steps = StepRange(self.first_step, last, count)
        self._submit(RecordFrames(frames))
        self._tell()

    def set_layers(self, layers: LayerTable, graph: LayerGraph) -> None:
        self._submit(SetLayers([layer.to_dict() for layer in layers], graph, self.facts.optimizers))
        self.write_event("layers", None, {"count": len(layers)})

    def write_event(self, kind: str, step: int | None, fields: dict[str, Any], explains: bool = False) -> None:
        """A line in the journal; `explains`: it may be what a finding follows from."""
        self._submit(WriteEvent(kind, step, time.time(), fields, explains))

    def facts_are_due(self) -> bool:
        return time.monotonic() - self._facts_written > _FACTS_EVERY

    def write_facts(self) -> None:
        self._facts_written = time.monotonic()
        self._submit(WriteFacts(self.facts))

    def _submit(self, request: Request) -> None:
        with self._lock:
            self._client.submit(request)

    # -- what comes out -----------------------------------------------------------------------------------

    def collect(self, everything: bool = False) -> None:
        """Tell what has changed, as far as it is known by now, or wait until all that came in is recorded."""
        with self._lock:
            self._client.collect(everything)
        self._tell()

    def _tell(self) -> None:
        """Without the lock: this calls the user's functions."""
        while self._client.answered:
            frames, answer = self._client.answered.popleft()
            self._notifications.tell(answer.changes, frames)

    def on_finding(self, callback: Callable[[Finding], object]) -> None:
        self._notifications.callbacks.append(callback)

    def critical(self) -> CriticalFindingError | None:
        return self._notifications.critical()

    def diagnose(self) -> Diagnosis:
        """Of what this process has recorded; after the end, as it was then."""
        with self._lock:
            if not self._closed:
                self._client.submit(Diagnose(str(self.folder), self.facts, self._steps))
                self._client.collect(everything=True)
            if self._client.diagnosis is not None:
                return self._client.diagnosis
        nothing = RunContext(self.folder, self.facts)  # nobody could go on recording
        return nothing.diagnose([], str(self.folder), StepRange(None, None, 0), self.facts.status)

    def take_seconds_elsewhere(self) -> float:
        """Processor time that frames have taken another process since the last time."""
        seconds, self._client.seconds_elsewhere = self._client.seconds_elsewhere, 0.0
        return seconds

    @property
    def bytes_written(self) -> int:
        return self._client.bytes_written

    # -- the end ------------------------------------------------------------------------------------------

    def start_upload(self, before_exit: Callable[[], None]) -> None:
        if self._uploader is not None:
            self._uploader.start(before_exit)

    def close(self, status: RunStatus, message: str = "", in_time: bool = True) -> None:
        """End the run, its sinks and its upload, and say how it went."""
        if self.facts.status is RunStatus.RUNNING:
            self.facts.status = status
        self.facts.message = self.facts.message or message
        self.facts.ended = time.time()
        if in_time:
            with self._lock:
                self._client.close(Close(str(self.folder), self.facts, self._steps))
                self._closed = True
        else:
            self._leave("the last frames could not be written in time")
        self._notifications.close()
        uploaded = self._uploader is not None and self._uploader.close(PATIENCE)
        if not self.settings.quiet:
            place = self.settings.run_dir if uploaded else _from_here(self.folder)
            words = f"{self.facts.message} ({place})"
            if in_time:
                is_kept = uploaded or (self.folder / RUN_FILE).exists()
                words = closing_line(self.diagnose(), place, self.facts.frames_dropped, is_kept)
            say(f"undertow: {words}")

    def end_now(self, status: RunStatus, why: str) -> None:
        """In the middle of `close`, which is not waited for: the run says how it ended, and that more was to come."""
        if not self._closed:
            if self.facts.status in (RunStatus.RUNNING, RunStatus.FINISHED):
                self.facts.status = status
            self.facts.ended = time.time()
            self._leave(f"{why}; the last frames may be missing")
        if not self.settings.quiet:
            say(f"undertow: {self.facts.message or why} ({_from_here(self.folder)})")

    def _leave(self, why: str) -> None:
        """What is on disk is all there will be."""
        self.facts.message = self.facts.message or why
        self._client.stop_process()
        write_facts(self.folder, self.facts)

    def abandon(self) -> None:
        """In a forked process: all of this belongs to the one that forked."""
        self._client.abandon()


def _from_here(folder: Path) -> Path:
    """As it would be typed in the working folder."""
    with contextlib.suppress(OSError, ValueError):
        return folder.relative_to(Path.cwd())
    return folder
