"""The recorder of a run: frames are written and judged, and what that changes is explained."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from undertow.detect.engine import Change, Engine, FindingChange
from undertow.detect.engine.journal import EVENT, changes_in, to_record
from undertow.recording.messages import (
    Answer,
    Close,
    Diagnose,
    RecordFrames,
    Request,
    SetLayers,
    WriteEvent,
    WriteFacts,
    layers_of,
)
from undertow.run_context import EXPLAINING, RunContext
from undertow.schema import Diagnosis, Frame, RunFacts
from undertow.store.reader import RunReader
from undertow.store.writer import RunWriter

_MOST_RECALLED = 20_000  # frames of a run so far that the rules are shown again


class RunRecorder:
    """Does what it is asked, whether the question comes from this process or from its parent. Begin with `begin` or
    `take_over`."""

    def __init__(self, context: RunContext, writer: RunWriter) -> None:
        self._context = context
        self.writer = writer
        self._engine = Engine()
        self._on_disk = -1  # sequence of the last whole frame that another process has written
        self._in_journal: list[bytes] = []  # what that process has said, maybe of frames that are shown again

    @classmethod
    def begin(cls, folder: Path, facts: RunFacts, resume: bool, disk_budget: int | None) -> RunRecorder:
        """A new run, or the next part of one."""
        recorder = cls(RunContext(folder, facts), RunWriter(folder, facts, resume=resume, disk_budget=disk_budget))
        if recorder.writer.last_step is not None:
            recorder._recall(RunReader(folder))
        return recorder

    @classmethod
    def take_over(
        cls, folder: Path, facts: RunFacts, disk_budget: int | None, seam_due: bool, until: int | None = None
    ) -> RunRecorder:
        """Go on with what another process has written so far, as if it had been this one.

        `until` is the last frame of which everything has been told, if that is not the last of all.
        """
        writer = RunWriter(folder, facts, takes_over=True, disk_budget=disk_budget)
        writer.seam_due = seam_due
        recorder = cls(RunContext(folder, facts), writer)
        earlier = RunReader(folder)
        recorder._on_disk = earlier.last_sequence
        last_step = recorder._recall(earlier, until)
        events = earlier.events()
        told = [event for event in events if until is None or (event.get("step") or 0) <= last_step]
        last_words = {change.place: change for change in changes_in(told)}
        recorder._engine.recall(last_words.values(), adopt=True)
        if until is not None:
            recorder._in_journal = [_identity(event) for event in events]
        return recorder

    def _recall(self, earlier: RunReader, until: int | None = None) -> int:
        """Let the rules see the run so far, so that they judge it as one; returns the last step they saw."""
        self._engine.set_layers(earlier.layers, earlier.graph)
        context = self._context
        context.layers, context.graph = earlier.layers, earlier.graph
        context.events = [event for event in earlier.events() if event.get("kind") in EXPLAINING]
        last = earlier.last_sequence if until is None else until
        last_step = -1
        frames = itertools.takewhile(lambda one: one.sequence <= last, earlier.frames(last - _MOST_RECALLED))
        while batch := list(itertools.islice(frames, 256)):
            self._engine.observe_many(batch)
            last_step = batch[-1].step
        return last_step

    def handle(self, request: Request) -> Answer:
        began = time.thread_time()
        context, writer = self._context, self.writer
        changes: list[FindingChange] = []
        diagnosis = None
        match request:
            case RecordFrames():
                changes = self._record(request.frames)
            case SetLayers():
                context.layers, context.graph = layers_of(request), request.graph
                context.facts.optimizers = request.optimizers
                writer.set_layers(context.layers, context.graph)
                self._engine.set_layers(context.layers, context.graph)
            case WriteEvent():
                if request.explains:
                    context.events.append({"kind": request.kind, "step": request.step, **request.fields})
                self._write_event(request.kind, request.step, request.time, request.fields)
            case WriteFacts():
                self._learn(request.facts)
                writer.write_facts()
            case Diagnose():
                self._learn(request.facts)
                if isinstance(request, Close):
                    writer.close()
                found, gaps = self._engine.findings(), self._engine.gaps()
                diagnosis = context.diagnose(found, request.run, request.steps, context.facts.status, unseen=gaps)
                if isinstance(request, Close):
                    self._keep_verdict(diagnosis)
            case _:  # a run that was taken over
                pass
        facts, seconds = context.facts, time.thread_time() - began
        return Answer(
            changes, writer.bytes_written, facts.frames_dropped, facts.seams, writer.seam_due, seconds, diagnosis
        )

    def _record(self, frames: Sequence[Frame]) -> list[FindingChange]:
        """Write frames and judge them. Every change is in the journal before anybody is told."""
        self.writer.append_many([frame for frame in frames if frame.sequence > self._on_disk])
        told: list[FindingChange] = []
        for frame, changes in self._engine.changes(frames):
            for change in changes:
                self._write_event(EVENT, frame.step, frame.time, to_record(change))
                if change.change is not Change.CLOSED:
                    finding = self._context.explained(change.finding, self._engine.beside(change))
                    change = replace(change, finding=finding)
                told.append(change)
        return told

    def _write_event(self, kind: str, step: int | None, time: float, fields: dict[str, Any]) -> None:
        if self._in_journal:
            identity = _identity({"kind": kind, "step": step, "time": time, **fields})
            if identity in self._in_journal:
                self._in_journal.remove(identity)
                return
        self.writer.event(kind, step, time=time, **fields)

    def _keep_verdict(self, diagnosis: Diagnosis) -> None:
        """For lists of runs, which judge none again."""
        facts, first = self._context.facts, next(iter(diagnosis.findings), None)
        facts.health = None if diagnosis.health is None else str(diagnosis.health)
        facts.cause = "" if first is None else f"{first.code} {first.name}"
        self.writer.write_facts()

    def _learn(self, new: RunFacts) -> None:
        """All but what is known here better."""
        for field in fields(RunFacts):
            if field.name not in ("frames_dropped", "seams", "coverage", "health", "cause"):
                setattr(self._context.facts, field.name, getattr(new, field.name))
        self._context.facts.coverage = self._engine.coverage()

    def all_replayed(self) -> None:
        """Everything that another process had not answered for has been shown again."""
        self._in_journal.clear()


def _identity(event: Mapping[str, Any]) -> bytes:
    """As it stands in the journal, whoever has written it: its time is that of what happened."""
    return msgspec.json.encode(event, enc_hook=str, order="sorted")
