"""Weights & Biases: a run of Undertow's own beside that of the training, and alerts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from undertow.schema import Finding, Severity

# By name: a type checker without the package would take this file for it.
wandb: Any = import_module("wandb")

_STEP = "undertow/step"
_LONGEST_TITLE = 64


class WeightsAndBiases:
    """Never the training's own run: each number logged there would move its step on."""

    def __init__(self, project: str, folder: Path, name: str) -> None:
        theirs: Any = wandb.run
        self._run: Any = wandb.init(
            project=project or getattr(theirs, "project", None) or "undertow",
            entity=getattr(theirs, "entity", None) or None,
            group=getattr(theirs, "group", None) or getattr(theirs, "id", None),
            job_type="undertow",
            name=f"undertow {name}",
            dir=str(folder),
            mode=_mode(theirs),
            reinit="create_new",
            # Their output, their code and their machine are watched by their own run, or by nobody.
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True
            ),
        )
        self._run.define_metric("undertow/*", step_metric=_STEP)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({_STEP: step, **{f"undertow/{name}": value for name, value in values.items()}})

    def finding(self, finding: Finding) -> None:
        level = {True: wandb.AlertLevel.WARN, False: wandb.AlertLevel.INFO}[finding.severity.is_alarm]
        if finding.severity is Severity.CRITICAL:
            level = wandb.AlertLevel.ERROR
        title = f"{finding.code} {finding.name}"[:_LONGEST_TITLE]
        self._run.alert(title, f"Step {finding.first_step}: {finding.summary}", level=level)

    def close(self) -> None:
        self._run.finish()


def _mode(theirs: Any) -> Any:
    """As the training's own run; without one, online only where somebody has logged in: it must never ask."""
    if theirs is not None and theirs.settings.mode in ("offline", "disabled"):
        return theirs.settings.mode
    return os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")


def open_sink(target: str, folder: Path, name: str) -> WeightsAndBiases:
    """`wandb:PROJECT` names the project."""
    return WeightsAndBiases(target, folder, name)
