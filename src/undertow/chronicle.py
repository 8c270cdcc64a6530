"""What becomes of a watched training: its frames are written and judged, and its findings explained.

Everything here happens in the background thread, apart from making it and asking it for what is known so far.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from undertow.detect.engine import Engine, FindingChange
from undertow.detect.journal import to_record
from undertow.errors import UndertowError
from undertow.explain.diagnosis import diagnose, explained, explained_among
from undertow.explain.divergence import Course
from undertow.probe.assemble import Assembler
from undertow.probe.readings import NewLayers, Note, RawFrame
from undertow.schema.facts import RunFacts
from undertow.schema.findings import Diagnosis, Finding, StepRange
from undertow.schema.frames import Frame
from undertow.schema.graph import LayerGraph
from undertow.schema.layers import LayerTable
from undertow.store.reader import RunReader
from undertow.store.writer import RunWriter

_FACTS_EVERY = 2.0  # seconds between two writes of run.json
_MOST_RECALLED = 20_000  # frames of a resumed run that the rules are shown again


class Chronicle:
    def __init__(self, folder: Path, facts: RunFacts, resume: bool, disk_budget: int | None) -> None:
        self.folder, self.facts = folder, facts
        self.assembler = Assembler()
        self._writer = RunWriter(folder, facts, resume=resume, disk_budget=disk_budget)
        self._engine = Engine()
        self._graph = LayerGraph()
        self._events: list[dict[str, Any]] = []
        self._sequence = 0
        self._steps_recorded = 0
        self._last_recorded = -1
        self._facts_written = time.monotonic()
        self.on_frames: Callable[[Sequence[Frame]], None] | None = None  # told of what was just written
        self.first_step = 0
        if self._writer.last_step is not None:
            self.first_step = self._writer.last_step + 1
            self._recall()

    def _recall(self) -> None:
        """Let the rules see the run that is being resumed, so that they judge it as one."""
        earlier = RunReader(self.folder)
        self._engine.set_layers(earlier.layers, earlier.graph)
        self._graph = earlier.graph
        frames = earlier.frames(after_sequence=earlier.last_sequence - _MOST_RECALLED)
        while batch := list(itertools.islice(frames, 256)):
            self._engine.observe_many(batch)
        self._events = [event for event in earlier.events() if event.get("kind") == "first_nonfinite"]

    @property
    def layers(self) -> LayerTable:
        return self._writer.layers

    # -- what comes in ------------------------------------------------------------------------------------

    def record(self, raws: list[RawFrame]) -> Iterator[FindingChange]:
        """Write frames, and judge them; the changes are in the journal already."""
        frames = self.assembler.frames(raws, self._sequence)
        self._sequence += len(frames)
        self._writer.append_many(frames)
        for frame in frames:
            if frame.step != self._last_recorded:
                self._steps_recorded += 1
                self._last_recorded = frame.step
        for frame, changes in self._engine.observe_many(frames):
            for change in changes:
                self._writer.event("finding", frame.step, **to_record(change))
                yield change
        if self.on_frames is not None:
            self.on_frames(frames)

    def take_layers(self, new: NewLayers) -> None:
        self._writer.set_layers(new.table, new.graph)
        self._engine.set_layers(new.table, new.graph)
        self._graph = new.graph
        self.facts.optimizers = new.facts.get("optimizers", [])
        self.facts.device = new.facts.get("device", "")
        self.facts.layers_skipped = new.facts.get("layers_skipped", 0)
        for reason in new.facts.get("reasons", []):
            self.add_reason(reason)
        self._writer.event("layers", None, count=len(new.table))

    def take_note(self, note: Note) -> None:
        if note.kind == "note" and "reason" in note.fields:
            self.add_reason(note.fields["reason"])
        self._events.append({"kind": note.kind, "step": note.step, **note.fields})
        self._writer.event(note.kind, note.step, **note.fields)

    def remark(self, reason: str) -> None:
        """A line in the journal that changes nothing about what is known."""
        self._writer.event("note", None, reason=reason)

    def add_reason(self, reason: str) -> None:
        if reason not in self.facts.reasons:
            self.facts.reasons.append(reason)

    def facts_are_due(self) -> bool:
        """Once in a while: time to write the facts again."""
        if time.monotonic() - self._facts_written <= _FACTS_EVERY:
            return False
        self._facts_written = time.monotonic()
        return True

    def write_facts(self) -> None:
        self._writer.write_facts()

    @property
    def bytes_written(self) -> int:
        return self._writer.bytes_written

    def close(self) -> None:
        self._writer.close()

    # -- what is known so far -----------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """What has been found so far, ranked."""
        found = self._engine.findings()
        return explained(found, **self._known(found))

    def explained(self, change: FindingChange) -> Finding:
        others = self._engine.beside(change)
        return explained_among(change.finding, others, **self._known([change.finding, *others]))

    def diagnose(self) -> Diagnosis:
        found, count = self._engine.findings(), self._steps_recorded
        steps = StepRange(self.first_step, self._last_recorded, count) if count else StepRange(None, None, 0)
        return diagnose(
            found,
            run=str(self.folder),
            facts=self.facts,
            layers=self.layers,
            steps=steps,
            events=self._events,
            status=str(self.facts.status),
            course=self._course(found),
            graph=self._graph,
        )

    def _known(self, findings: Sequence[Finding]) -> dict[str, Any]:
        """What explains findings besides themselves: the same as when the run is read."""
        return {
            "layers": self.layers,
            "events": self._events,
            "course": self._course(findings),
            "graph": self._graph,
            "optimizers": self.facts.optimizers,
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
