"""Trackio: a run of Undertow's own in a local project, and alerts. It says a few lines of its own on stdout."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from undertow.schema import Finding, Severity

# By name: a type checker without the package would take this file for it.
trackio: Any = import_module("trackio")


class Trackio:
    """Trackio keeps its current run per thread, so that of the training is not touched."""

    def __init__(self, project: str, name: str) -> None:
        self._run: Any = trackio.init(
            project or "undertow", f"undertow {name}", embed=False, auto_log_gpu=False, auto_log_cpu=False
        )

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({f"undertow/{name}": value for name, value in values.items()}, step=step)

    def finding(self, finding: Finding) -> None:
        level = trackio.AlertLevel.WARN if finding.severity.is_alarm else trackio.AlertLevel.INFO
        if finding.severity is Severity.CRITICAL:
            level = trackio.AlertLevel.ERROR
        self._run.alert(f"{finding.code} {finding.name}", f"Step {finding.first_step}: {finding.summary}", level=level)

    def close(self) -> None:
        self._run.finish()


def open_sink(target: str, folder: Path, name: str) -> Trackio:
    """`trackio:PROJECT` names the project."""
    return Trackio(target, name)
