"""GRD003: a bias that the loss does not depend on."""

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


def test_a_bias_alone_is_not_cut_off() -> None:
    training = without_gradient(60, "head.bias")
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD003", Severity.INFO, ("head.bias",))
