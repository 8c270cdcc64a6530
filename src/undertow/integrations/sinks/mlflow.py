"""MLflow: a run of Undertow's own, with metrics, and a tag for every code that was found."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from undertow.schema import Finding

# By name: a type checker without the package would take this file for it.
mlflow: Any = import_module("mlflow")
Metric: Any = import_module("mlflow.entities").Metric

_EXPERIMENT = "undertow"
_MOST = 1000  # metrics that a server takes at once
_EVERY = 5.0  # seconds between two requests
_LONGEST_TAG = 5000


class MLflow:
    """Through a client of its own: the active run of the training is not touched."""

    def __init__(self, address: str | None, name: str) -> None:
        self._client: Any = mlflow.MlflowClient(address)
        experiment = self._client.get_experiment_by_name(_EXPERIMENT)
        identity = experiment.experiment_id if experiment else self._client.create_experiment(_EXPERIMENT)
        self._run: str = self._client.create_run(identity, run_name=name).info.run_id
        self._waiting: list[Any] = []
        self._sent = time.monotonic()

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._waiting += [Metric(f"undertow/{name}", value, now, step) for name, value in values.items()]
        if len(self._waiting) > _MOST // 2 or time.monotonic() - self._sent > _EVERY:
            self._send()

    def finding(self, finding: Finding) -> None:
        text = f"{finding.severity}, step {finding.first_step}: {finding.summary}"
        self._client.set_tag(self._run, f"undertow.{finding.code}", text[:_LONGEST_TAG])

    def close(self) -> None:
        self._send()
        self._client.set_terminated(self._run)

    def _send(self) -> None:
        self._client.log_batch(self._run, metrics=self._waiting[:_MOST])
        self._waiting = []
        self._sent = time.monotonic()


def open_sink(target: str, folder: Path, name: str) -> MLflow:
    """`mlflow:URI`; without one, where MLflow's own setting points."""
    return MLflow(target or None, name)
