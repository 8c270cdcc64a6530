"""One training, watched and diagnosed, and set beside the truth about it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import undertow
from undertow.demos.case import Case
from undertow.schema import Diagnosis, Finding


@dataclass(frozen=True, slots=True)
class Examination:
    training: Case
    seed: int
    fault_on: bool
    metrics: dict[str, float]
    diagnosis: Diagnosis
    status: str

    @property
    def was_watched(self) -> bool:
        """Silence means something only when every step was seen, to the end."""
        return self.status == "finished" and self.diagnosis.steps.recorded >= min(20, self.training.steps)

    @property
    def is_sick(self) -> bool:
        return self.training.is_sick and self.fault_on

    @property
    def alarms(self) -> list[Finding]:
        return [finding for finding in self.diagnosis.findings if finding.severity.is_alarm]

    @property
    def false_alarms(self) -> list[Finding]:
        """Every alarm of a healthy run, of a remark-only one, and those a fault had not yet caused."""
        if not self.is_sick or self.training.code == "UPD004":
            return self.alarms
        return [finding for finding in self.alarms if finding.detected_step < self.training.onset]

    @property
    def detection(self) -> Finding | None:
        """The first finding with a right code. UPD004 is a remark; every other disease deserves an alarm."""
        for finding in self.diagnosis.findings:
            loud_enough = finding.severity.is_alarm or self.training.code == "UPD004"
            if finding.code in self.training.codes and loud_enough and finding.detected_step >= self.training.onset:
                return finding
        return None

    @property
    def steps_to_detect(self) -> int | None:
        return None if self.detection is None else self.detection.detected_step - self.training.onset

    @property
    def names_a_guilty_layer(self) -> bool | None:
        """Is the layer named first a guilty one? None when the cause is global."""
        if not self.training.layers:
            return None
        return self.detection is not None and any(self.training.accepts(layer) for layer in self.detection.layers[:1])

    @property
    def is_ranked_first(self) -> bool:
        """Would a user who reads one finding read a right one?"""
        findings = self.diagnosis.findings
        return bool(findings) and findings[0].code in self.training.codes


def examine(
    training: Case, folder: Path, seed: int = 0, fault_on: bool = True, every: int | str = "auto"
) -> Examination:
    """Train under watch, finding the model as `undertow run` would, and diagnose from the folder."""
    with undertow.watch(None, run_dir=folder, every=every, quiet=True):
        metrics = training.run(seed=seed, fault_on=fault_on)
    run = undertow.open_run(folder)
    return Examination(training, seed, fault_on, metrics, run.diagnose(), str(run.status))


def harm(faulty: Sequence[float], twins: Sequence[float]) -> tuple[float, float]:
    """How far a metric is off over several seeds, and what that must exceed: three times what seeds do, and 0.02."""
    return abs(statistics.mean(faulty) - statistics.mean(twins)), max(3 * statistics.stdev(twins), 0.02)
