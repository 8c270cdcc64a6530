"""NUM005: gradients underflow in half precision."""

from __future__ import annotations

import pytest
from tests.detect.building import watched_by

from undertow.detect.rules.numerics.gradient_underflow import GradientUnderflow
from undertow.schema import Severity

ALIVE = {"activation_dead_fraction": 0.05, "activation_zero_fraction": 0.5, "activation_saturated_fraction": 0.0}


def test_gradients_at_the_bottom_of_half_precision() -> None:
    training = watched_by(GradientUnderflow)
    training.run(6, gradient_zero_fraction=0.8, gradient_max_abs=1e-6, gradient_fp16_underflow=0.0, **ALIVE)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("NUM005", Severity.SEVERE, ())
    assert (finding.first_step, finding.detected_step) == (0, 4)
    training.run(1, gradient_zero_fraction=0.1, gradient_max_abs=1e-2, gradient_fp16_underflow=0.0)
    assert not training.findings()[0].ongoing


@pytest.mark.parametrize("smallest", [{"gradient_fp16_underflow": 0.3}, {"gradient_max_abs": 0.1}])
def test_zeros_beside_smaller_or_larger_numbers_are_healthy(smallest: dict[str, float]) -> None:
    healthy = {"gradient_zero_fraction": 0.8, "gradient_max_abs": 1e-6, "gradient_fp16_underflow": 0.0}
    assert watched_by(GradientUnderflow).run(30, **{**healthy, **smallest}, **ALIVE).findings() == []


def test_all_gradients_zero_needs_a_reason_to_think_of_precision() -> None:
    zero = {"gradient_zero_fraction": 1.0, "gradient_max_abs": 0.0, "gradient_norm": 0.0}
    assert watched_by(GradientUnderflow).run(20, **zero, **ALIVE).findings() == []
    assert watched_by(GradientUnderflow, dtype="float16").run(20, **zero, **ALIVE).alarms() == ["NUM005"]
    small = watched_by(GradientUnderflow).run(1, scalars={"loss_factor": 1e-6}, **zero, **ALIVE)
    assert small.run(20, **zero, **ALIVE).alarms() == ["NUM005"]
    dead = {**ALIVE, "activation_zero_fraction": 1.0}
    assert watched_by(GradientUnderflow, dtype="float16").run(20, **zero, **dead).findings() == []


def test_a_model_that_had_finer_gradients_is_not_in_half_precision() -> None:
    training = watched_by(GradientUnderflow).run(1, gradient_fp16_underflow=0.01, **ALIVE)
    training.run(20, gradient_zero_fraction=0.8, gradient_max_abs=1e-6, gradient_fp16_underflow=0.0, **ALIVE)
    assert training.findings() == []
