"""The life of one watched training: probe, store and rules, put together."""

from __future__ import annotations

import atexit
import itertools
import math
import os
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

from undertow.beginnings import facts_here, uploader_of
from undertow.chronicle import Chronicle
from undertow.chronicler.start import competes
from undertow.errors import CriticalFindingError, SettingError, UndertowError
from undertow.herald import Herald, feed_sinks
from undertow.probe import taps
from undertow.probe.arguments import Models, Optimizers, check_globs, optimizers_of, roots_of
from undertow.probe.mailbox import Item, Mailbox
from undertow.probe.readings import NewLayers, Note, RawFrame, number_now
from undertow.probe.step import StepMachine
from undertow.probe.subjects import Subjects
from undertow.ranks import follower_place, governor_here, leader_here, within
from undertow.schema.facts import RunStatus
from undertow.schema.findings import Diagnosis, Finding
from undertow.settings import Settings
from undertow.show.bars import say
from undertow.show.closing import closing_line
from undertow.store.latest import new_run_folder, point_latest

if TYPE_CHECKING:
    from undertow.run import Run

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
        return _disabled()
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
    _command_watch = _disabled() if settings.disabled else _new_watch(settings, None, None)
    return _command_watch


def _disabled() -> Watch:
    from undertow.disabled import DisabledWatch

    return DisabledWatch()


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
        self._uploader = uploader_of(settings, _say)
        if self._uploader is not None:
            self.folder = self._uploader.folder
        else:
            self.folder = Path(settings.run_dir or new_run_folder(settings.directory, settings.name or ""))
        self._facts = facts_here(settings)
        prompt = settings.on_critical == "raise"  # what is found must be known at once, so it is found here
        self._chronicle = Chronicle(
            self.folder,
            self._facts,
            settings.resume,
            settings.disk_budget or None,
            "never" if prompt else settings.chronicler,
            self._is_crowded,
        )
        if settings.run_dir is None:
            point_latest(settings.directory, self.folder)
        self._first_step = self._chronicle.first_step
        self._feed = feed_sinks(settings, self.folder, self._chronicle.add_reason)
        if self._feed is not None:
            self._chronicle.on_frames = self._feed.frames
        self._herald = Herald(settings, self._feed, self._chronicle.remark)
        self._lock = threading.Lock()
        subjects = Subjects(roots, optimizers, settings.include, settings.exclude)
        subjects.layers.adopt(self._chronicle.layers)
        self._ranks = leader_here(self.folder, self._chronicle.layers, self._first_step)
        self._governor = governor_here(settings, self._ranks)
        handle, idle = self._handle, self._idle
        if self._ranks is not None:
            handle, idle = self._ranks.around(handle, idle, self._stumble)
        self._mailbox = Mailbox(handle, idle, prompt, self._settle, self._is_crowded)
        post = self._post if prompt else self._mailbox.post
        self._recorder = StepMachine(subjects, self._governor, post, self._step_aside, self._first_step)
        self._recorder.start()
        atexit.register(self._at_exit)
        _open.append(self)
        if self._uploader is not None:
            self._uploader.start(self._at_exit)

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
        return self._chronicle.findings()

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
        self._herald.callbacks.append(callback)

    def diagnose(self) -> Diagnosis:
        return self._chronicle.diagnose()

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
            ended = within(_PATIENCE, partial(self._ranks.finish, self._handle)) and within(_PATIENCE, self._settle)
        if self._facts.status is RunStatus.RUNNING:
            self._facts.status = status
        self._facts.message = self._facts.message or message
        self._facts.ended = time.time()
        self._update_facts()
        if ended:
            self._chronicle.close()
        else:
            self._chronicle.give_up()
        if self._feed is not None:
            self._feed.close()
        uploaded = self._uploader is not None and self._uploader.close(_PATIENCE)
        if not self.settings.quiet:
            _say(closing_line(self.diagnose(), self.settings.run_dir if uploaded else self.folder))
        critical = self._herald.critical()
        if critical is not None and status is RunStatus.FINISHED:  # found after the last step
            raise critical

    def _repr_html_(self) -> str | None:
        """In a notebook: what the run has shown so far. The training is not kept waiting."""
        from undertow.show.notebook.display import html_of_run, run_of_watch

        run = run_of_watch(self)
        return None if run is None else html_of_run(run)

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

    def _post(self, item: Item) -> float:
        waited = self._mailbox.post(item)
        if isinstance(item, RawFrame):
            critical = self._herald.critical()
            if critical is not None:
                raise critical
        return waited

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

    def _is_crowded(self) -> bool:
        """Whether the training has a thread of its own on every processor. On a GPU those have nothing to do, and
        the background of several ranks waits for others, which nobody must do for it."""
        return self._ranks is None and self._facts.device == "cpu" and competes(torch.get_num_threads())

    # -- in the background thread -------------------------------------------------------------------------

    def _handle(self, items: list[Item]) -> None:
        try:
            for are_frames, some in itertools.groupby(items, key=lambda item: isinstance(item, RawFrame)):
                if are_frames:
                    self._record([item for item in some if isinstance(item, RawFrame)])
                    continue
                for item in some:
                    if isinstance(item, NewLayers):
                        self._chronicle.take_layers(item)
                    elif isinstance(item, Note):
                        self._chronicle.take_note(item)
        except Exception as error:
            self._stumble(error)

    def _stumble(self, error: Exception) -> None:
        self._recorder.stop()
        if self._facts.status is RunStatus.RUNNING:
            self._step_aside(error)

    def _record(self, raws: list[RawFrame]) -> None:
        began = time.thread_time()
        for told in self._chronicle.record(raws):
            self._herald.announce(told)
        seconds = time.thread_time() - began
        if competes(torch.get_num_threads()):
            seconds += self._chronicle.take_seconds_elsewhere()
        self._recorder.note_look(self._chronicle.assembler.seconds_of_a_look)
        self._governor.background(seconds, len(raws), sum(raw.has_gradient for raw in raws))

    def _idle(self) -> None:
        try:
            for told in self._chronicle.news():
                self._herald.announce(told)
            if self._chronicle.facts_are_due():
                self._update_facts()
                self._chronicle.write_facts()
        except Exception as error:
            self._stumble(error)

    def _settle(self) -> None:
        """Everything handled so far has been recorded, and what came of it announced."""
        try:
            self._chronicle.settle()
            for told in self._chronicle.news():
                self._herald.announce(told)
        except Exception as error:
            self._stumble(error)

    def _update_facts(self) -> None:
        facts, governor = self._facts, self._governor
        facts.steps_seen = self._recorder.step + 1 - self._first_step
        facts.overhead_fraction = governor.fraction
        facts.overhead_seconds_per_step = governor.seconds_per_step
        if facts.steps_seen:
            facts.bytes_per_step = self._chronicle.bytes_written / facts.steps_seen
        if self._mailbox.dropped:
            self._chronicle.add_reason(f"{self._mailbox.dropped} frames came faster than they could be written")

    # -- the end ------------------------------------------------------------------------------------------

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
        self._chronicle.abandon()
        atexit.unregister(self._at_exit)


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
