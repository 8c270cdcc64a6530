"""What explains findings besides themselves, the same while a run is written and when it is read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from undertow.errors import UndertowError
from undertow.explain.diagnosis import diagnose, explained_among
from undertow.explain.divergence import ValueHistory
from undertow.explain.loss_history import LossHistory
from undertow.schema import Diagnosis, Finding, LayerGraph, LayerTable, RunFacts, StepRange
from undertow.store.reader import RunReader

EXPLAINING = ("first_nonfinite", "source")  # kinds of events that findings are explained by
_AT_EACH_END = 256  # recorded steps


@dataclass(slots=True)
class RunContext:
    """Layers, graph, facts and events of a run so far."""

    folder: Path
    facts: RunFacts
    layers: LayerTable = field(default_factory=LayerTable)
    graph: LayerGraph = field(default_factory=LayerGraph)
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    reader: RunReader | None = None  # if the run is open already

    def explained(self, finding: Finding, others: Sequence[Finding]) -> Finding:
        """One finding as it stands among all that is known."""
        return explained_among(
            finding,
            others,
            layers=self.layers,
            events=self.events,
            history=self._history([finding, *others]),
            graph=self.graph,
            optimizers=self.facts.optimizers,
            losses=self._losses([finding, *others]),
        )

    def diagnose(
        self,
        findings: Sequence[Finding],
        run: str,
        steps: StepRange,
        status: str,
        problems: Sequence[str] = (),
        unseen: Sequence[str] = (),
    ) -> Diagnosis:
        return diagnose(
            findings,
            run=run,
            facts=self.facts,
            layers=self.layers,
            steps=steps,
            events=self.events,
            status=status,
            problems=problems,
            history=self._history(findings),
            graph=self.graph,
            losses=self._losses(findings),
            unseen=unseen,
        )

    def _losses(self, findings: Sequence[Finding]) -> LossHistory | None:
        """All losses and learning rates, where there is an alarm to explain and to mend."""
        if not any(finding.severity.is_alarm for finding in findings):
            return None
        try:
            reader = self.reader or RunReader(self.folder)
            if "loss" not in reader.scalar_names:
                return None
            rates = reader.scalars("lr") if "lr" in reader.scalar_names else None
            return LossHistory.of(reader.steps, reader.scalars("loss"), rates)
        except (OSError, ValueError, UndertowError):
            return None

    def _history(self, findings: Sequence[Finding]) -> ValueHistory | None:
        """The loss and the largest weight up to the first non-finite value: how it began, and the last steps.

        Read back from the disk: nothing is kept for it while all is well.
        """
        starts = [finding.first_step for finding in findings if finding.code.startswith("NUM")]
        if not starts:
            return None
        try:
            return _history_until(min(starts), self.reader or RunReader(self.folder))
        except (OSError, ValueError, UndertowError):
            return None  # the run cannot be read: findings are explained without it


def _history_until(step: int, reader: RunReader) -> ValueHistory:
    end = int(np.searchsorted(reader.steps, step, "right"))
    spans = [slice(0, end)]
    if end > 2 * _AT_EACH_END:
        spans = [slice(0, _AT_EACH_END), slice(end - _AT_EACH_END, end)]
    steps = np.concatenate([reader.steps[span] for span in spans])
    loss = largest = np.full(len(steps), np.nan)
    if "loss" in reader.scalar_names:
        every = reader.scalars("loss")
        loss = np.concatenate([every[span] for span in spans])
    if "weight_max_abs" in reader.quantities:
        weights = np.concatenate([reader.matrix("weight_max_abs", rows=span) for span in spans])
        largest = np.fmax.reduce(weights, axis=1, initial=-np.inf)  # not finite where none was measured
    return ValueHistory(steps, loss, largest)
