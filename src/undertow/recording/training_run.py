"""The run of a live training, in the process that writes it: readings become frames, and frames are recorded."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from undertow.errors import UndertowError
from undertow.probe.assemble import Assembler
from undertow.probe.mailbox import Item, Mailbox
from undertow.probe.readings import NewLayers, Note, RawFrame
from undertow.probe.schedule import Governor
from undertow.probe.source.places import described
from undertow.probe.step import StepMachine
from undertow.recording.following_rank import shared_governor, wanted_pace, within
from undertow.recording.recorder_process import competes
from undertow.recording.run_metadata import facts_here
from undertow.recording.run_recording import PATIENCE, RunRecording
from undertow.schema import Finding, RunStatus
from undertow.settings import Settings
from undertow.show.bars import say
from undertow.store.run_documents import write_facts

if TYPE_CHECKING:
    from undertow.probe.distributed.leader import Leader
    from undertow.probe.distributed.rank_tree import RankPlace


class TrainingRun:
    """What `LiveWatch` gives its readings to; `FollowingRank` is the same for a rank that does not write."""

    def __init__(self, rank: RankPlace | None, settings: Settings, stumble: Callable[[Exception], None]) -> None:
        """`stumble` is told of an error of ours in the background thread."""
        self._stumble = stumble
        self._is_attached = False
        self._files_read: set[str] = set()  # of the user's program
        self._alarms: set[tuple[str, str]] = set()  # code and variant of those that were raised
        self.facts = facts_here(settings, torch=torch.__version__)
        self.recording = RunRecording(settings, self.facts, self.is_crowded)
        self.run_folder, self.label = self.recording.folder, str(self.recording.folder)
        self.layers, self.first_step = self.recording.layers, self.recording.first_step
        self.assembler = Assembler()
        self._leader: Leader | None = None  # gathers the other ranks' parts
        self.handle, self.idle, self.settle = map(self._guarded, (self._handle, self._idle, self._settle))
        if rank is None:
            self.governor = Governor(*wanted_pace(settings))
            return
        from undertow.probe.distributed.leader import Leader

        message = {"folder": str(self.run_folder.resolve()), "first_step": self.first_step}
        leader = self._leader = Leader(rank, self.layers, message)
        self._finish = partial(leader.finish, self.handle)
        self.governor = governor = shared_governor(settings)
        governor.announce, leader.merged = leader.set_pace, governor.merged
        self.handle, self.idle = leader.around(self.handle, self.idle, stumble)

    def attach(self, steps: StepMachine, mailbox: Mailbox) -> None:
        """What reads the training, and what is in between."""
        self._step_machine, self._mailbox, self._is_attached = steps, mailbox, True
        self.recording.on_finding(self._look_closer)

    def is_crowded(self) -> bool:
        """Whether the training has a thread of its own on every processor. On a GPU those have nothing to do, and
        the background of several ranks waits for others, which nobody must do for it."""
        return self._leader is None and self.facts.device == "cpu" and competes(torch.get_num_threads())

    # -- in the background thread -------------------------------------------------------------------------

    def _guarded(self, work: Callable[..., None]) -> Callable[..., None]:
        def guarded(*arguments: Any) -> None:
            try:
                work(*arguments)
            except Exception as error:
                self._stumble(error)

        return guarded

    def _handle(self, items: list[Item]) -> None:
        for are_frames, some in itertools.groupby(items, key=lambda item: isinstance(item, RawFrame)):
            if are_frames:
                self._record([item for item in some if isinstance(item, RawFrame)])
                continue
            for item in some:
                if isinstance(item, NewLayers):
                    self._take_facts(item.facts)
                    self.recording.set_layers(item.table, item.graph)
                elif isinstance(item, Note) and item.kind == "source":
                    places = described(item.fields["places"], item.fields["folder"], self._files_read)
                    self.recording.write_event("source", item.step, {"places": places}, explains=True)
                elif isinstance(item, Note):
                    if item.kind == "note" and "reason" in item.fields:
                        self.facts.add_reason(item.fields["reason"])
                    self.recording.write_event(item.kind, item.step, item.fields, explains=True)

    def _record(self, raws: list[RawFrame]) -> None:
        began = time.thread_time()
        try:
            frames = self.assembler.frames(raws, self.recording.next_sequence)
        except Exception:
            if len(raws) == 1:
                raise
            self.assembler = Assembler()  # it may have stopped half-way
            for raw in raws:  # those before the one that cannot be read must not be lost with it
                self._record([raw])
            return
        self.recording.record(frames)
        seconds = time.thread_time() - began
        if competes(torch.get_num_threads()):
            seconds += self.recording.take_seconds_elsewhere()
        self._step_machine.note_signal_seconds(self.assembler.seconds_per_loss)
        self.governor.background(seconds, len(raws), sum(raw.has_gradient for raw in raws))

    def _look_closer(self, finding: Finding) -> None:
        if finding.severity.is_alarm and (finding.code, finding.variant) not in self._alarms:
            self._alarms.add((finding.code, finding.variant))
            self._step_machine.look_closer()

    def _take_facts(self, found: dict[str, Any]) -> None:
        self.facts.optimizers = found.get("optimizers", [])
        self.facts.device = found.get("device", "")
        self.facts.layers_skipped = found.get("layers_skipped", 0)
        for reason in found.get("reasons", []):
            self.facts.add_reason(reason)

    def _idle(self) -> None:
        self.recording.collect()
        if self._is_attached and self.recording.facts_are_due():
            self._update_facts()
            self.recording.write_facts()

    def _settle(self) -> None:
        """Everything handled so far has been recorded, and what came of it told."""
        self.recording.collect(everything=True)

    def _update_facts(self) -> None:
        facts, governor = self.facts, self.governor
        facts.steps_seen = self._step_machine.step + 1 - self.first_step
        facts.overhead_fraction = governor.fraction
        facts.overhead_seconds_per_step = governor.seconds_per_step
        if facts.steps_seen:
            facts.bytes_per_step = self.recording.bytes_written / facts.steps_seen
        if self._mailbox.dropped:
            facts.add_reason(f"{self._mailbox.dropped} frames came faster than they could be written")

    # -- the end ------------------------------------------------------------------------------------------

    def step_aside(self, error: Exception) -> bool:
        """False when it was said already, since both threads may stumble over the same thing, or the run has ended."""
        if self.facts.status is not RunStatus.RUNNING:
            return False
        self.facts.status = RunStatus.DETACHED
        if isinstance(error, UndertowError):  # something the user can mend
            self.facts.message = str(error)
            say(f"undertow: error {error.code}: {error}. Nothing is watched; your training goes on")
            return True
        self.facts.message = f"Undertow stepped aside after an internal error ({type(error).__name__}: {error})"
        say(
            f"undertow: error UT100: {type(error).__name__}: {error}. Undertow has stepped aside and your training "
            f"goes on; details are in {self.run_folder / 'events.jsonl'}"
        )
        return True

    def fail_to_close(self, error: Exception, status: RunStatus) -> None:
        """The last resort: what is on disk stays, and says how the run ended as far as can be told."""
        facts, is_said = self.facts, self.facts.status is RunStatus.DETACHED
        facts.status = status if facts.status is RunStatus.RUNNING else facts.status
        facts.message = facts.message or f"Undertow could not close the run properly ({type(error).__name__}: {error})"
        with contextlib.suppress(Exception):
            write_facts(self.run_folder, facts)
        if not is_said:
            say(
                f"undertow: error UT100: {type(error).__name__}: {error}. The run in {self.run_folder} is kept as it is"
            )

    def end_now(self, message: str) -> None:
        """While another thread closes the run, for which there is no time."""
        with contextlib.suppress(Exception):
            self.recording.end_now(RunStatus.INTERRUPTED, message)

    def close(self, status: RunStatus, message: str, in_time: bool) -> None:
        if in_time and self._leader is not None:
            in_time = within(PATIENCE, self._finish) and within(PATIENCE, self.settle)
        self._update_facts()
        self.recording.close(status, message, in_time)
