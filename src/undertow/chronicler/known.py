"""What explains findings besides themselves: layers, graph, facts and events of the run so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undertow.errors import UndertowError
from undertow.explain.diagnosis import diagnose, explained, explained_among
from undertow.explain.divergence import Course
from undertow.schema.facts import RunFacts
from undertow.schema.findings import Diagnosis, Finding, StepRange
from undertow.schema.frames import Frame
from undertow.schema.graph import LayerGraph
from undertow.schema.layers import LayerTable
from undertow.store.reader import RunReader


@dataclass(slots=True)
class Known:
    folder: Path
    facts: RunFacts
    first_step: int = 0
    layers: LayerTable = field(default_factory=LayerTable)
    graph: LayerGraph = field(default_factory=LayerGraph)
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    last_step: int = -1
    steps_recorded: int = 0

    def take_frames(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if frame.step != self.last_step:
                self.steps_recorded += 1
                self.last_step = frame.step

    def findings(self, found: Sequence[Finding]) -> list[Finding]:
        """Ranked, with causes and remedies."""
        return explained(list(found), **self._beside(found))

    def explained(self, finding: Finding, others: Sequence[Finding]) -> Finding:
        return explained_among(finding, list(others), **self._beside([finding, *others]))

    def diagnose(self, found: Sequence[Finding]) -> Diagnosis:
        count = self.steps_recorded
        steps = StepRange(self.first_step, self.last_step, count) if count else StepRange(None, None, 0)
        return diagnose(
            list(found),
            run=str(self.folder),
            facts=self.facts,
            layers=self.layers,
            steps=steps,
            events=self.events,
            status=str(self.facts.status),
            course=self._course(found),
            graph=self.graph,
        )

    def _beside(self, findings: Sequence[Finding]) -> dict[str, Any]:
        """The same as when the run is read."""
        return {
            "layers": self.layers,
            "events": self.events,
            "course": self._course(findings),
            "graph": self.graph,
            "optimizers": self.facts.optimizers,
        }

    def _course(self, findings: Sequence[Finding]) -> Course | None:
        """Read back from the disk, when something is not finite: nothing is kept for it while all is well."""
        if not any(finding.code.startswith("NUM") for finding in findings):
            return None
        from undertow.run import course_of  # much to import for what most runs never need

        try:
            return course_of(RunReader(self.folder), findings)
        except (OSError, ValueError, UndertowError):
            return None  # the run cannot be read: findings are told without it
