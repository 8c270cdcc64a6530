"""OpenTelemetry: gauges, and a log event for each finding, through whatever providers the process has set up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from opentelemetry._logs import LogRecord, SeverityNumber, get_logger
from opentelemetry.metrics import get_meter

from undertow.integrations.sinks.digest import NAMES
from undertow.schema import Finding, Severity

_LEVELS = {
    Severity.INFO: SeverityNumber.INFO,
    Severity.MILD: SeverityNumber.INFO3,
    Severity.MODERATE: SeverityNumber.WARN,
    Severity.SEVERE: SeverityNumber.ERROR,
    Severity.CRITICAL: SeverityNumber.FATAL,
}
_MOST_LAYERS = 20


class OpenTelemetry:
    def __init__(self, run: str) -> None:
        meter = get_meter("undertow")
        self._gauges = {name: meter.create_gauge(f"undertow.{name}") for name in ("step", *NAMES)}
        self._logger = get_logger("undertow")
        self._run = run

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in (("step", step), *values.items()):
            self._gauges[name].set(value, {"undertow.run": self._run})

    def finding(self, finding: Finding) -> None:
        self._logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                severity_text=str(finding.severity),
                severity_number=_LEVELS[finding.severity],
                body=finding.summary,
                event_name="undertow.finding",
                attributes={
                    "undertow.run": self._run,
                    "undertow.code": finding.code,
                    "undertow.name": finding.name,
                    "undertow.layers": finding.layers[:_MOST_LAYERS],
                    "undertow.first_step": finding.first_step,
                    "undertow.confidence": finding.confidence,
                },
            )
        )

    def close(self) -> None:
        """The providers are the process's own, and so is when they flush."""


def open_sink(target: str, folder: Path, name: str) -> OpenTelemetry:
    return OpenTelemetry(name)
