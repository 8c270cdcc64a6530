"""The life of one watched training: taps on it, the thread behind it, and what becomes of its readings."""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from undertow.errors import CriticalFindingError, SettingError, UndertowError
from undertow.probe import taps
from undertow.probe.arguments import Models, Optimizers, check_globs, optimizers_of, roots_of
from undertow.probe.distributed.rank_tree import rank_now
from undertow.probe.mailbox import Mailbox
from undertow.probe.readings import Note, RawFrame, number_now
from undertow.probe.source.source_watch import SourceWatch
from undertow.probe.step import StepMachine
from undertow.probe.subjects import Subjects
from undertow.recording.following_rank import FollowingRank
from undertow.recording.run_recording import PATIENCE
from undertow.recording.signals import begun, interrupt_deferred
from undertow.recording.training_run import TrainingRun
from undertow.recording.watch_handle import Watch
from undertow.schema import Diagnosis, Finding, RunStatus
from undertow.settings import Settings

if TYPE_CHECKING:
    from undertow.run import Run

_open: list[LiveWatch] = []
_HURRY = 0.8  # seconds for a run that is being closed, before a signal ends the process


def begin_watch(settings: Settings, model: Models, optimizer: Optimizers) -> LiveWatch:
    roots, optimizers = roots_of(model), optimizers_of(optimizer)
    for earlier in list(_open):  # the same cell of a notebook, run again
        if earlier.watches_any(roots):
            earlier.close()
    return LiveWatch(settings, roots, optimizers)


class LiveWatch(Watch):
    """In a distributed training the first rank writes the run, and the others send it what they measure."""

    def __init__(
        self, settings: Settings, roots: dict[str, nn.Module] | None, optimizers: list[Optimizer] | None
    ) -> None:
        self.settings = settings
        self.closed = False
        self._roots = [weakref.ref(root) for root in (roots or {}).values()]
        if roots is not None:
            check_globs(settings.include, settings.exclude, roots)
        rank = rank_now()
        run: TrainingRun | FollowingRank
        if rank is None or rank.leads:
            run = TrainingRun(rank, settings, self._stumble)
        else:
            run = FollowingRank(rank, settings)
        self._run = run
        self._recording = run.recording  # None on a rank that follows
        self._lock = threading.RLock()  # a handler of a signal may ask, too
        self._closing: threading.Thread | None = None
        self._ended = threading.Event()
        self._begun = threading.Event()
        subjects = Subjects(roots, optimizers, settings.include, settings.exclude)
        subjects.layers.adopt(run.layers)
        prompt = settings.on_critical == "raise" and self._recording is not None
        raise_critical = self._raise_while_open if prompt else None
        self._mailbox = Mailbox(run.handle, run.idle, raise_critical, run.settle, run.is_crowded, self._stumble)
        self._recorder = StepMachine(subjects, run.governor, self._mailbox, self._step_aside, run.first_step)
        self._source: SourceWatch | None = None
        if settings.source and self._recording is not None:
            from_the_start = settings.xray
            self._source = SourceWatch(
                subjects, self._mailbox.post, lambda: self._recorder.step, roots is None, from_the_start
            )
            self._recorder.stopped = self._source.stop
        run.attach(self._recorder, self._mailbox)
        self._recorder.start()
        if self._source is not None and self._recording is not None:
            self._source.start()
            self._recording.on_finding(self._look_for_its_line)
        self._begun.set()
        atexit.register(self._at_exit)
        _open.append(self)
        if self._recording is not None:
            self._recording.start_upload(self._at_exit)

    # -- for users ----------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path | None:
        return None if self._recording is None else self._recording.folder

    @property
    def run(self) -> Run:
        from undertow.run import open_run

        self._mailbox.flush(PATIENCE)
        if self._run.run_folder is None:
            raise UndertowError("the first rank has not begun its run yet", way_out="Read it there, or later")
        return open_run(self._run.run_folder)

    @property
    def findings(self) -> list[Finding]:
        self._mailbox.flush(PATIENCE)
        return [] if self._recording is None else list(self._recording.diagnose().findings)

    def log(self, **scalars: float) -> None:
        values: dict[str, Any] = {}
        for name, value in scalars.items():
            try:
                values[name] = number_now(value, math.nan)
            except (TypeError, ValueError, RuntimeError):
                raise SettingError(f"log got {name}={value!r}", way_out="Log single numbers") from None
        if not self.closed and values:
            try:
                step = max(self._recorder.step, self._run.first_step)
                self._mailbox.post(RawFrame(step, time.time(), self._recorder.subjects.layout, values), at_once=True)
            except Exception as error:
                self._stumble(error)

    def on_finding(self, callback: Callable[[Finding], object]) -> None:
        if self._recording is not None:
            self._recording.on_finding(callback)

    def diagnose(self) -> Diagnosis:
        return self.run.diagnose() if self._recording is None else self._recording.diagnose()

    def close(self, status: RunStatus = RunStatus.FINISHED, message: str = "") -> None:
        """By a thread of its own: whatever signals do to this one, the run is closed. Only tensors are read here."""
        is_first = False
        try:
            with interrupt_deferred():
                with self._lock:
                    is_first, self.closed = not self.closed, True
                    if is_first:
                        try:
                            self._recorder.finish()
                            if self._source is not None:
                                self._source.stop()  # by the thread that trains: what it has entered, it leaves
                        except Exception as error:
                            self._stumble(error)
                        finally:
                            self._closing = begun(lambda: self._close(status, message))
                if threading.current_thread() in (self._mailbox.thread, self._closing):
                    return  # by a callback: a thread cannot wait for its own end
                # Not for the thread: an interrupted `join` takes it for one that has ended.
                if not self._ended.wait(None if is_first or status is not RunStatus.INTERRUPTED else _HURRY):
                    self._end_now(message)  # the process is about to be ended
                elif self._closing is not None:
                    self._closing.join(_HURRY)
            if is_first and status is RunStatus.FINISHED:
                self._raise_critical()  # found after the last step
        except CriticalFindingError:
            raise
        except Exception as error:  # one of ours
            with suppress(Exception):
                self._stumble(error)
            self.closed = True
            if self._closing is None:
                self._close(status, message)
            self._ended.wait(PATIENCE)
        except BaseException:  # a second Ctrl-C, or the program ends itself in a handler of its own
            if self.closed and not self._ended.is_set():
                self._end_now(message)
            raise

    def _close(self, status: RunStatus, message: str) -> None:
        if self in _open:
            _open.remove(self)
        try:
            try:
                self._recorder.stop()
            finally:
                self._run.close(status, message, self._mailbox.close(PATIENCE))
        except Exception as error:  # one of ours: the script has nothing to do with it
            self._run.fail_to_close(error, status)
        finally:
            atexit.unregister(self._at_exit)  # until then the end of the program waits for this
            self._ended.set()

    def _end_now(self, message: str) -> None:
        """Nobody waits any longer for a run to be closed."""
        atexit.unregister(self._at_exit)
        self._run.end_now(message or "interrupted while the run was being closed")

    def __repr__(self) -> str:
        return f"<undertow.Watch {self._run.label} {'closed' if self.closed else f'step {self._recorder.step}'}>"

    # -- on the training thread ---------------------------------------------------------------------------

    def watches_any(self, roots: dict[str, nn.Module] | None) -> bool:
        mine = [root() for root in self._roots]
        if roots is None:
            return not mine
        return any(root is known for root in roots.values() for known in mine)

    def _raise_while_open(self) -> None:
        if not self.closed:  # else `close` does
            self._raise_critical()

    def _raise_critical(self) -> None:
        critical = None if self._recording is None else self._recording.critical()
        if critical is not None:
            raise critical

    def _step_aside(self, error: Exception) -> None:
        """An internal error: the training goes on without us, and the user hears of it once."""
        if isinstance(error, CriticalFindingError):
            raise error
        if self._run.step_aside(error):
            trace = "".join(traceback.format_exception(error))
            self._mailbox.post(Note("error", self._recorder.step, {"traceback": trace}), at_once=True)

    # -- in the background thread -------------------------------------------------------------------------

    def _stumble(self, error: Exception) -> None:
        """An error of ours outside the taps."""
        self._begun.wait(PATIENCE)  # the thread is started before all is there
        self._recorder.stop()
        self._step_aside(error)

    def _look_for_its_line(self, finding: Finding) -> None:
        if self._source is not None and finding.severity.is_alarm:
            self._source.look_again((finding.code, finding.variant))

    # -- the end ------------------------------------------------------------------------------------------

    def _at_exit(self) -> None:
        self._close_after(getattr(sys, "last_type", None), getattr(sys, "last_value", ""))

    def abandon(self) -> None:
        """In a forked child: this watch belongs to the parent. What it has written can be read."""
        self.closed, self._closing, self._lock, self._ended = True, None, threading.RLock(), threading.Event()
        self._ended.set()
        if self._recording is not None:
            self._recording.abandon()
            self._recording = None
        atexit.unregister(self._at_exit)


def _in_child() -> None:
    """Forked workers (data loaders) do not train, and must not write to their parent's run."""
    taps.forget_all()
    for one in _open:
        one.abandon()
    _open.clear()


os.register_at_fork(after_in_child=_in_child)
