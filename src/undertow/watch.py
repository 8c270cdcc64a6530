"""The life of one watched training: probe, store and rules, put together."""

from __future__ import annotations

import atexit
import itertools
import math
import os
import platform
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from undertow import __version__
from undertow.detect.engine import Change, Engine, FindingChange
from undertow.detect.journal import to_record
from undertow.errors import CriticalFindingError, SettingError, UndertowError
from undertow.explain.diagnosis import diagnose, explained, explained_among
from undertow.explain.divergence import Course
from undertow.probe import taps
from undertow.probe.assemble import Assembler
from undertow.probe.given import Models, Optimizers, check_globs, optimizers_of, roots_of
from undertow.probe.mailbox import Item, Mailbox
from undertow.probe.readings import NewLayers, Note, RawFrame
from undertow.probe.recorder import Recorder
from undertow.probe.step import number_now
from undertow.probe.subjects import Subjects
from undertow.ranks import follower_place, governor_here, leader_here, within
from undertow.schema.facts import RunFacts, RunStatus
from undertow.schema.findings import Diagnosis, Finding, StepRange
from undertow.schema.frames import Frame
from undertow.schema.graph import LayerGraph
from undertow.schema.severity import Severity
from undertow.settings import Settings
from undertow.show.bars import say
from undertow.show.closing import closing_line
from undertow.store.latest import new_run_folder, point_latest
from undertow.store.reader import RunReader
from undertow.store.writer import RunWriter

if TYPE_CHECKING:
    from undertow.run import Run

_FACTS_EVERY = 2.0  # seconds between two writes of run.json
_MOST_RECALLED = 20_000  # frames of a resumed run that the rules are shown again
_PATIENCE = 30.0  # seconds to wait for the background thread when closing

_open: list[Watch] = []
_command_watch: Watch | None = None  # the one that `undertow run` holds over a whole script


def watch(
    model: Models = None,
    optimizer: Optimizers = None,
    run_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    every: int | str | None = None,
    budget: float | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    activations: bool | int | str | None = None,
    on_critical: str | Callable[[Finding], object] | None = None,
    quiet: bool | None = None,
    **more: Any,
) -> Watch:
    """Watch a training from here on; the loop itself stays as it is.

    Without a model, Undertow finds the models whose parameters the optimizers of this process hold.
    Several models are given as a list, or as a dictionary of names. The handle is also a context manager
    and closes itself at exit. See `Settings` for what the other arguments mean.
    """
    settings = Settings.resolve(
        run_dir=run_dir,
        name=name,
        every=every,
        budget=budget,
        include=include,
        exclude=exclude,
        activations=activations,
        on_critical=on_critical,
        quiet=quiet,
        **more,
    )
    roots = roots_of(model)
    optimizers = optimizers_of(optimizer)
    if settings.disabled:
        return DisabledWatch()
    if _command_watch is not None and not _command_watch.closed:
        return _command_watch  # the script runs under `undertow run`: one watch is enough
    for earlier in list(_open):  # the same cell of a notebook, run again
        if earlier.watches_any(roots):
            earlier.close()
    return _new_watch(settings, roots, optimizers)


def _new_watch(settings: Settings, roots: dict[str, nn.Module] | None, optimizers: list[Optimizer] | None) -> Watch:
    """In a distributed training the first rank writes the run, and the others send it what they measure."""
    place = follower_place()
    if place is None:
        return Watch(settings, roots, optimizers)
    from undertow.follower import FollowerWatch

    return FollowerWatch(place, settings, roots, optimizers)


def watch_command(settings: Settings) -> Watch:
    """The watch of `undertow run`: over the whole script, whatever it trains."""
    global _command_watch
    _command_watch = DisabledWatch() if settings.disabled else _new_watch(settings, None, None)
    return _command_watch


class Watch:
    """A handle on a watched training. Made by `undertow.watch`."""

    def __init__(
        self, settings: Settings, roots: dict[str, nn.Module] | None, optimizers: list[Optimizer] | None
    ) -> None:
        self.settings = settings
        self.closed = False
        self._roots = [weakref.ref(root) for root in (roots or {}).values()]
        if roots is not None:
            check_globs(settings.include, settings.exclude, roots)
        if settings.resume and settings.run_dir is None:
            raise SettingError("resume was asked for without a run folder", way_out="Name the folder with run_dir")
        self.folder = Path(settings.run_dir or new_run_folder(settings.directory, settings.name or ""))
        self._facts = _facts(settings)
        self._writer = RunWriter(
            self.folder, self._facts, resume=settings.resume, disk_budget=settings.disk_budget or None
        )
        if settings.run_dir is None:
            point_latest(settings.directory, self.folder)
        self._first_step = 0
        self._events: list[dict[str, Any]] = []
        self._engine = Engine()
        self._graph = LayerGraph()
        if self._writer.last_step is not None:
            self._first_step = self._writer.last_step + 1
            self._recall()
        self._assembler = Assembler()
        self._sequence = 0
        self._steps_recorded = 0
        self._last_recorded = -1
        self._callbacks: list[Callable[[Finding], object]] = []
        self._to_raise: Finding | None = None
        self._warned: set[str] = set()
        self._facts_written = time.monotonic()
        self._lock = threading.Lock()
        subjects = Subjects(roots, optimizers, settings.include, settings.exclude)
        subjects.catalogue.adopt(self._writer.layers)
        self._ranks = leader_here(self.folder, self._writer.layers, self._first_step)
        self._governor = governor_here(settings, self._ranks)
        handle, idle = self._handle, self._idle
        if self._ranks is not None:
            handle, idle = self._ranks.around(handle, idle)
        self._mailbox = Mailbox(handle, idle, prompt=settings.on_critical == "raise")
        self._recorder = Recorder(subjects, self._governor, self._post, self._step_aside, self._first_step)
        self._recorder.start()
        atexit.register(self._at_exit)
        _open.append(self)

    # -- for users ----------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The run being written, opened for reading."""
        from undertow.run import open_run

        self._mailbox.flush(_PATIENCE)
        return open_run(self.folder)

    @property
    def findings(self) -> list[Finding]:
        """What has been found so far, ranked."""
        self._mailbox.flush(_PATIENCE)
        found = self._engine.findings()
        return explained(found, **self._known(found))

    def log(self, **scalars: float) -> None:
        """Record more numbers at the current step. Loss and learning rate are captured without this."""
        values: dict[str, Any] = {}
        for name, value in scalars.items():
            try:
                values[name] = number_now(value, math.nan)
            except (TypeError, ValueError, RuntimeError):
                raise SettingError(f"log got {name}={value!r}", way_out="Log single numbers") from None
        if not self.closed and values:
            step = max(self._recorder.step, self._first_step)
            self._post(RawFrame(step, time.time(), self._recorder.subjects.layout, values))

    def on_finding(self, callback: Callable[[Finding], object]) -> None:
        """Call back, in the background thread, whenever something is found."""
        self._callbacks.append(callback)

    def diagnose(self) -> Diagnosis:
        return diagnose(
            self._engine.findings(),
            run=str(self.folder),
            facts=self._facts,
            layers=self._writer.layers,
            steps=StepRange(self._first_step if self._steps_recorded else None, self._last(), self._steps_recorded),
            events=self._events,
            status=str(self._facts.status),
            course=self._course(self._engine.findings()),
            graph=self._graph,
        )

    def close(self, status: RunStatus = RunStatus.FINISHED, message: str = "") -> None:
        """Stop watching. No hook, thread, file handle or patched function remains. Safe to call twice."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
        self._recorder.stop()
        atexit.unregister(self._at_exit)
        if self in _open:
            _open.remove(self)
        ended = self._mailbox.close(_PATIENCE)
        if ended and self._ranks is not None:
            ended = within(_PATIENCE, partial(self._ranks.finish, self._handle))
        if self._facts.status is RunStatus.RUNNING:
            self._facts.status = status
        self._facts.message = self._facts.message or message
        self._facts.ended = time.time()
        self._update_facts()
        if ended:
            self._writer.close()
        if not self.settings.quiet:
            _say(closing_line(self.diagnose(), self.folder))
        if self._to_raise is not None and status is RunStatus.FINISHED:  # found after the last step
            raise _critical(self._to_raise)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None:
            self.close()
        elif issubclass(kind, KeyboardInterrupt):
            self.close(RunStatus.INTERRUPTED)
        else:
            self.close(RunStatus.FAILED, f"{kind.__name__}: {error}")

    def __repr__(self) -> str:
        return f"<undertow.Watch {self.folder} {'closed' if self.closed else f'step {self._recorder.step}'}>"

    # -- on the training thread ---------------------------------------------------------------------------

    def watches_any(self, roots: dict[str, nn.Module] | None) -> bool:
        mine = [root() for root in self._roots]
        if roots is None:
            return not mine
        return any(root is known for root in roots.values() for known in mine)

    def _post(self, item: Item) -> None:
        self._mailbox.post(item)
        if self._to_raise is not None and isinstance(item, RawFrame):
            finding, self._to_raise = self._to_raise, None
            raise _critical(finding)

    def _step_aside(self, error: Exception) -> None:
        """An internal error: the training goes on without us, and the user hears of it once."""
        if isinstance(error, CriticalFindingError):
            raise error
        if self._facts.status is RunStatus.DETACHED:
            return  # said already; both threads may stumble over the same thing
        self._facts.status = RunStatus.DETACHED
        self._mailbox.post(Note("error", self._recorder.step, {"traceback": _trace(error)}))
        if isinstance(error, UndertowError):  # something the user can mend
            self._facts.message = str(error)
            _say(f"error {error.code}: {error}. Nothing is watched; your training goes on")
            return
        self._facts.message = f"Undertow stepped aside after an internal error ({type(error).__name__}: {error})"
        _say(
            f"error UT100: {type(error).__name__}: {error}. Undertow has stepped aside and your training goes on; "
            f"details are in {self.folder / 'events.jsonl'}"
        )

    def _recall(self) -> None:
        """Let the rules see the run that is being resumed, so that they judge it as one."""
        earlier = RunReader(self.folder)
        self._engine.set_layers(earlier.layers, earlier.graph)
        self._graph = earlier.graph
        frames = earlier.frames(after_sequence=earlier.last_sequence - _MOST_RECALLED)
        while batch := list(itertools.islice(frames, 256)):
            self._engine.observe_many(batch)
        self._events = [event for event in earlier.events() if event.get("kind") == "first_nonfinite"]

    # -- in the background thread -------------------------------------------------------------------------

    def _handle(self, items: list[Item]) -> None:
        try:
            for are_frames, some in itertools.groupby(items, key=lambda item: isinstance(item, RawFrame)):
                if are_frames:
                    self._record([item for item in some if isinstance(item, RawFrame)])
                    continue
                for item in some:
                    if isinstance(item, NewLayers):
                        self._take_layers(item)
                    elif isinstance(item, Note):
                        self._take_note(item)
        except Exception as error:
            self._recorder.stop()
            if self._facts.status is RunStatus.RUNNING:
                self._step_aside(error)

    def _record(self, raws: list[RawFrame]) -> None:
        began = time.thread_time()
        frames = self._assembler.frames(raws, self._sequence)
        self._sequence += len(frames)
        self._writer.append_many(frames)
        for frame in frames:
            if frame.step != self._last_recorded:
                self._steps_recorded += 1
                self._last_recorded = frame.step
        for frame, changes in self._engine.observe_many(frames):
            for change in changes:
                self._announce(change, frame)
        kind = "gradient" if any(raw.has_gradient for raw in raws) else "always"
        self._governor.background(kind, time.thread_time() - began, len(raws))

    def _announce(self, change: FindingChange, frame: Frame) -> None:
        self._writer.event("finding", frame.step, **to_record(change))
        if change.change is Change.CLOSED:
            return
        others = self._engine.beside(change)
        finding = explained_among(change.finding, others, **self._known([change.finding, *others]))
        for callback in self._callbacks:
            self._call(callback, finding)
        if finding.severity is Severity.CRITICAL and finding.code not in self._warned:
            self._warned.add(finding.code)
            action = self.settings.on_critical
            if callable(action):
                self._call(action, finding)
            elif action == "raise":
                self._to_raise = finding
            elif action == "warn" and not self.settings.quiet:
                _say(f"{finding.code} at step {finding.first_step}: {finding.summary}")

    def _known(self, findings: Sequence[Finding]) -> dict[str, Any]:
        """What explains findings besides themselves: the same as when the run is read."""
        return {
            "layers": self._writer.layers,
            "events": self._events,
            "course": self._course(findings),
            "graph": self._graph,
            "optimizers": self._facts.optimizers,
        }

    def _course(self, findings: Sequence[Finding]) -> Course | None:
        """Read back from the disk, when something is not finite: nothing is kept for it while all is well."""
        from undertow.run import course_of

        if not any(finding.code.startswith("NUM") for finding in findings):
            return None
        try:
            return course_of(RunReader(self.folder), findings)
        except (OSError, ValueError, UndertowError):
            return None  # the run cannot be read: findings are told without it

    def _call(self, callback: Callable[[Finding], object], finding: Finding) -> None:
        try:
            callback(finding)
        except Exception as error:  # the user's own function: say so, and go on watching
            self._writer.event("note", None, reason=f"a finding callback raised {type(error).__name__}: {error}")

    def _take_layers(self, new: NewLayers) -> None:
        self._writer.set_layers(new.table, new.graph)
        self._engine.set_layers(new.table, new.graph)
        self._graph = new.graph
        self._facts.optimizers = new.facts.get("optimizers", [])
        self._facts.device = new.facts.get("device", "")
        self._facts.layers_skipped = new.facts.get("layers_skipped", 0)
        for reason in new.facts.get("reasons", []):
            self._add_reason(reason)
        self._writer.event("layers", None, count=len(new.table))

    def _take_note(self, note: Note) -> None:
        if note.kind == "note" and "reason" in note.fields:
            self._add_reason(note.fields["reason"])
        self._events.append({"kind": note.kind, "step": note.step, **note.fields})
        self._writer.event(note.kind, note.step, **note.fields)

    def _add_reason(self, reason: str) -> None:
        if reason not in self._facts.reasons:
            self._facts.reasons.append(reason)

    def _idle(self) -> None:
        if time.monotonic() - self._facts_written > _FACTS_EVERY:
            self._facts_written = time.monotonic()
            self._update_facts()
            self._writer.write_facts()

    def _update_facts(self) -> None:
        facts, governor = self._facts, self._governor
        facts.steps_seen = self._recorder.step + 1 - self._first_step
        facts.overhead_fraction = governor.fraction
        facts.overhead_seconds_per_step = governor.seconds_per_step
        if facts.steps_seen:
            facts.bytes_per_step = self._writer.bytes_written / facts.steps_seen
        if self._mailbox.dropped:
            self._add_reason(f"{self._mailbox.dropped} frames came faster than they could be written")

    # -- the end ------------------------------------------------------------------------------------------

    def _last(self) -> int | None:
        return self._last_recorded if self._steps_recorded else None

    def _at_exit(self) -> None:
        kind = getattr(sys, "last_type", None)
        if kind is None:
            self.close()
        elif issubclass(kind, KeyboardInterrupt):
            self.close(RunStatus.INTERRUPTED)
        else:
            self.close(RunStatus.FAILED, f"{kind.__name__}: {getattr(sys, 'last_value', '')}")

    def abandon(self) -> None:
        """In a forked child: this watch belongs to the parent."""
        self.closed = True
        atexit.unregister(self._at_exit)


class DisabledWatch(Watch):
    """What `watch` returns when UNDERTOW_DISABLED is set: accepts everything, does nothing."""

    def __init__(self) -> None:
        self.closed = True

    @property
    def run(self) -> Run:
        raise UndertowError("Undertow is disabled, so there is no run", way_out="Unset UNDERTOW_DISABLED")

    @property
    def findings(self) -> list[Finding]:
        return []

    def log(self, **scalars: float) -> None:
        pass

    def on_finding(self, callback: Callable[[Finding], object]) -> None:
        pass

    def close(self, status: RunStatus = RunStatus.FINISHED, message: str = "") -> None:
        pass

    def __repr__(self) -> str:
        return "<undertow.Watch disabled>"


def _facts(settings: Settings) -> RunFacts:
    return RunFacts(
        undertow=__version__,
        name=settings.name or "",
        created=time.time(),
        process=os.getpid(),
        host=platform.node(),
        command=list(sys.argv),
        python=platform.python_version(),
        torch=torch.__version__,
        settings=settings.to_record(),
    )


def _critical(finding: Finding) -> CriticalFindingError:
    return CriticalFindingError(f"{finding.code} at step {finding.first_step}: {finding.summary}")


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _say(line: str) -> None:
    say(f"undertow: {line}")


def _in_child() -> None:
    """Forked workers (data loaders) do not train, and must not write to their parent's run."""
    taps.forget_all()
    for one in _open:
        one.abandon()
    _open.clear()


os.register_at_fork(after_in_child=_in_child)


class _CallableModule(types.ModuleType):
    """`undertow.watch` is this module as soon as anything imports it, and the function for everybody else."""

    def __call__(self, *args: Any, **kwargs: Any) -> Watch:
        return watch(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
