"""Gives requests to the recorder of a run, wherever that works, and forgets none until it is answered for.

Every run is recorded in this process at first. Once that has cost the training as much as another process would, one
takes over: its Python does not compete with the training's for the interpreter's lock. If it is lost, the run is taken
back from the disk, and what it had not answered for is asked again.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from undertow.recording.messages import Answer, Close, RecordFrames, Request, SetLayers, TakeOver, WriteEvent, encode
from undertow.recording.recorder import RunRecorder
from undertow.recording.recorder_process import ProcessLostError, RecorderProcess, can_start, processors
from undertow.schema import Diagnosis, Frame, RunFacts
from undertow.show.bars import say

_MOST_PENDING = 32 << 20  # bytes sent and not answered for; beyond this, wait
_WORTH_A_PROCESS = 0.15  # seconds of rules and writing so far; starting a process takes about twice as many
_SHORT = 1.0  # seconds; a training that ends before this has no use for it


class RecorderClient:
    """Not for two threads at once."""

    def __init__(
        self,
        folder: Path,
        facts: RunFacts,
        resume: bool,
        disk_budget: int | None,
        process: str,
        is_crowded: Callable[[], bool],
    ) -> None:
        """`process` is "never", "always", or "auto": once it is worth one, unless every processor is taken."""
        self._folder, self._facts, self._disk_budget = folder, facts, disk_budget
        recorder = RunRecorder.begin(folder, facts, resume, disk_budget)
        self._recorder: RunRecorder | None = recorder
        self.layers, self.last_step = recorder.writer.layers, recorder.writer.last_step  # of the run that is resumed
        self.last_sequence = recorder.writer.last_sequence
        self.answered: deque[tuple[Sequence[Frame], Answer]] = deque()  # for the caller to take
        self.diagnosis: Diagnosis | None = None  # the latest that was asked for
        self.bytes_written = 0
        self.seconds_elsewhere = 0.0  # processor time that frames have taken the other process
        self._bytes_before = 0  # by recorders before the one that works now
        self._seam_due = False
        self._last_answered = -1  # sequence of a frame
        self._layers_told: SetLayers | None = None  # the last that was answered
        self._pending: deque[tuple[Request, int]] = deque()  # with their sizes
        self._pending_bytes = 0
        self._process: RecorderProcess | None = None  # it is still starting while there is a recorder here
        self._mode = process if process != "auto" or (can_start() and processors() > 1) else "never"
        self._is_crowded = is_crowded
        self._began = time.monotonic()
        self._spent = 0.0
        if process == "always":
            self._start_process()

    def submit(self, request: Request) -> None:
        self._consider_process()
        if self._recorder is not None:
            self._take(request, self._recorder.handle(request))
        elif self._process is not None:
            self._send(request, self._process)

    def collect(self, everything: bool = False) -> None:
        """Take what has been answered by now, or wait until everything is."""
        self._consider_process()
        if self._process is not None and self._recorder is None:
            self._exchange(self._process, everything)

    def _send(self, request: Request, process: RecorderProcess) -> None:
        message = encode(request)
        self._pending.append((request, len(message)))
        self._pending_bytes += len(message)
        self._exchange(process, False, message)

    def _exchange(self, process: RecorderProcess, everything: bool, message: bytes = b"") -> None:
        try:
            if message:
                process.send(message)
            while self._pending:
                is_full = self._pending_bytes > _MOST_PENDING and len(self._pending) > 1
                answer = process.receive(wait=everything or is_full)
                if answer is None:
                    return
                request, size = self._pending.popleft()
                self._pending_bytes -= size
                if isinstance(request, RecordFrames):
                    self.seconds_elsewhere += answer.seconds
                self._take(request, answer)
        except ProcessLostError as lost:
            self._take_back(process, lost)

    def _take(self, request: Request, answer: Answer) -> None:
        self.bytes_written = self._bytes_before + answer.bytes_written
        self._facts.frames_dropped, self._facts.seams = answer.frames_dropped, answer.seams
        self._seam_due = answer.seam_due
        self.diagnosis = answer.diagnosis or self.diagnosis
        if isinstance(request, SetLayers):
            self._layers_told = request
        if isinstance(request, RecordFrames):
            self._spent += answer.seconds
            self._last_answered = request.frames[-1].sequence
            self.answered.append((request.frames, answer))

    # -- who does the work --------------------------------------------------------------------------------

    def _consider_process(self) -> None:
        if self._recorder is None:
            return
        if self._process is None:
            is_worth_it = self._spent > _WORTH_A_PROCESS and time.monotonic() - self._began > _SHORT
            if self._mode == "auto" and is_worth_it and not self._is_crowded():
                self._start_process()
            return
        try:
            if self._process.is_ready(wait=self._mode == "always"):
                self._hand_over(self._recorder, self._process)
        except ProcessLostError as lost:
            self._process.stop()
            self._do_without(lost)
            self._say_what_failed(lost)

    def _start_process(self) -> None:
        try:
            self._process = RecorderProcess()
        except Exception as error:
            self._do_without(ProcessLostError(f"{type(error).__name__}: {error}"))

    def _hand_over(self, recorder: RunRecorder, process: RecorderProcess) -> None:
        """The other process reads what is on disk: nothing may be missing there."""
        self._mode = "never"
        if recorder.writer.last_error:  # a full disk, say: what only this process knows would be lost
            process.stop()
            self._process = None
            return
        recorder.writer.close()
        self._recorder = None
        self._bytes_before = self.bytes_written
        self._last_answered, self._seam_due = recorder.writer.last_sequence, recorder.writer.seam_due
        folder = str(self._folder.resolve())
        self._send(TakeOver(folder, self._facts, self._disk_budget, self._seam_due), process)
        if self._layers_told is not None:  # the run on disk does not say which numbers the training uses
            self._send(self._layers_told, process)

    def _take_back(self, process: RecorderProcess, lost: ProcessLostError) -> None:
        process.stop()
        self._process = None  # if the run cannot be taken back either, nobody records it any more
        self._bytes_before = self.bytes_written
        recorder = RunRecorder.take_over(
            self._folder, self._facts, self._disk_budget, self._seam_due, self._last_answered
        )
        self._recorder = recorder
        if self._layers_told is not None:
            recorder.handle(self._layers_told)
        self._do_without(lost)
        while self._pending:
            request, _ = self._pending.popleft()
            self._take(request, recorder.handle(request))
        self._pending_bytes = 0
        recorder.all_replayed()
        self._say_what_failed(lost)

    def _do_without(self, lost: ProcessLostError) -> None:
        self._process, self._mode = None, "never"
        self._facts.add_reason(f"the run is written by the training's own process: another was tried, but {lost}")
        if lost.trace:
            self.submit(WriteEvent("error", None, time.time(), {"traceback": lost.trace}))

    def _say_what_failed(self, lost: ProcessLostError) -> None:
        """Once nothing is lost by it. Where this process stumbles over the same, it says so itself."""
        if lost.trace:
            say(
                f"undertow: error UT100: {lost.trace.strip().splitlines()[-1]}. The process that recorded the run has "
                f"ended and your training's own goes on with it; details are in {self._folder / 'events.jsonl'}"
            )

    # -- the end ------------------------------------------------------------------------------------------

    def close(self, request: Close) -> None:
        if self._recorder is not None and self._mode != "always":
            self.stop_process()  # it is still starting
        self.submit(request)
        self.collect(everything=True)
        if self._process is not None:
            self._process.end()

    def stop_process(self) -> None:
        """Leave none behind when there is no time to close."""
        self._mode = "never"
        if self._process is not None:
            self._process.stop()
        if self._recorder is not None:
            self._process = None

    def abandon(self) -> None:
        """In a forked process: all of this belongs to the one that forked."""
        if self._process is not None:
            self._process.abandon()
