"""GRD003: layers that never run."""

from __future__ import annotations

import math

from tests.detect.building import Training

from undertow.schema import Severity


def without_gradient(steps: int, path: str, **more: object) -> Training:
    nothing = {path: math.nan}
    return Training().run(
        steps, gradient_state={path: 1.0}, gradient_norm=nothing, gradient_zero_fraction=nothing,
        gradient_nonfinite_count=nothing, update_norm={path: 0.0}, **more,
    )  # fmt: skip


def test_a_module_that_never_runs_is_only_noted() -> None:
    training = without_gradient(60, "head", activation_calls={"head": 0.0})
    assert training.alarms() == []
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("GRD003", Severity.INFO)
