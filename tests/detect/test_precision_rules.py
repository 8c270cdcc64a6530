"""NUM004, NUM005."""

from __future__ import annotations

import math

import pytest
from tests.detect.building import Training

from undertow.detect.engine import Engine
from undertow.detect.rule import Rule
from undertow.detect.rules.low_precision import LowPrecision
from undertow.detect.rules.nonfinite_activation import NonfiniteActivation
from undertow.schema.severity import Severity


def watched_by(rule: Rule, dtype: str = "float32") -> Training:
    training = Training("first", "second", "third", "head", dtype=dtype)
    training.engine = Engine([rule])
    training.engine.set_layers(training.layers, training.graph)
    return training


BAD = {"second": 3.0, "second_relu": 3.0, "third": 64.0, "head": 64.0}

# -- NUM004 -------------------------------------------------------------------------------------------------------


def test_the_first_module_that_puts_out_nan_is_named() -> None:
    training = watched_by(NonfiniteActivation()).run(5)
    training.run(1, activation_nonfinite_count=BAD, scalars={"loss": math.nan})
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("NUM004", Severity.CRITICAL, ("second",))
    assert (finding.first_step, finding.confidence) == (5, 1.0)
    training.run(1)
    assert not training.findings()[0].ongoing


@pytest.mark.parametrize("change", [{"scalars": {"loss": 1.0}}, {"scalars": {"loss": math.nan, "step_skipped": 1.0}}])
def test_masks_and_skipped_steps_are_only_noted(change: dict[str, dict[str, float]]) -> None:
    training = watched_by(NonfiniteActivation()).run(2)
    training.run(3, activation_nonfinite_count=BAD, **change)
    assert [finding.severity for finding in training.findings()] == [Severity.INFO]


def test_a_finite_loss_with_bad_gradients_is_harm() -> None:
    training = watched_by(NonfiniteActivation())
    training.run(1, activation_nonfinite_count=BAD, gradient_nonfinite_count=1.0)
    assert training.alarms() == ["NUM004"]


def test_outputs_of_poisoned_weights_are_no_news() -> None:
    training = watched_by(NonfiniteActivation())
    training.run(1, weight_nonfinite_count=1.0)
    training.run(3, activation_nonfinite_count=BAD, scalars={"loss": math.nan}, weight_nonfinite_count=1.0)
    assert training.findings() == []


def test_a_module_whose_weights_a_function_uses_is_suspected_too() -> None:
    training = watched_by(NonfiniteActivation())
    counts = {"second": math.nan, "third": 3.0, "head": 64.0}
    training.run(1, activation_nonfinite_count=counts, scalars={"loss": math.nan})
    (finding,) = training.findings()
    assert finding.layers == ("second", "third")
    assert finding.confidence < 1


# -- NUM005 -------------------------------------------------------------------------------------------------------

ALIVE = {"activation_dead_fraction": 0.05, "activation_zero_fraction": 0.5, "activation_saturated_fraction": 0.0}
FADING = {"first": 1.0, "second": 0.97, "third": 0.6, "head": 0.1}


def test_gradients_at_the_bottom_of_half_precision() -> None:
    training = watched_by(LowPrecision())
    training.run(6, gradient_zero_fraction=0.8, gradient_max_abs=1e-6, gradient_fp16_underflow=0.0, **ALIVE)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("NUM005", Severity.SEVERE, ())
    assert (finding.first_step, finding.detected_step) == (0, 4)
    training.run(1, gradient_zero_fraction=0.1, gradient_max_abs=1e-2, gradient_fp16_underflow=0.0)
    assert not training.findings()[0].ongoing


@pytest.mark.parametrize("smallest", [{"gradient_fp16_underflow": 0.3}, {"gradient_max_abs": 0.1}])
def test_zeros_beside_smaller_or_larger_numbers_are_healthy(smallest: dict[str, float]) -> None:
    healthy = {"gradient_zero_fraction": 0.8, "gradient_max_abs": 1e-6, "gradient_fp16_underflow": 0.0}
    assert watched_by(LowPrecision()).run(30, **{**healthy, **smallest}, **ALIVE).findings() == []


def test_all_gradients_zero_needs_a_reason_to_think_of_precision() -> None:
    zero = {"gradient_zero_fraction": 1.0, "gradient_max_abs": 0.0, "gradient_norm": 0.0}
    assert watched_by(LowPrecision()).run(20, **zero, **ALIVE).findings() == []
    assert watched_by(LowPrecision(), dtype="float16").run(20, **zero, **ALIVE).alarms() == ["NUM005"]
    small = watched_by(LowPrecision()).run(1, scalars={"loss_factor": 1e-6}, **zero, **ALIVE)
    assert small.run(20, **zero, **ALIVE).alarms() == ["NUM005"]
    dead = {**ALIVE, "activation_zero_fraction": 1.0}
    assert watched_by(LowPrecision(), dtype="float16").run(20, **zero, **dead).findings() == []


def test_zeros_that_fade_towards_the_loss_while_units_live() -> None:
    training = watched_by(LowPrecision()).run(12, gradient_zero_fraction=FADING, gradient_max_abs=0.1, **ALIVE)
    assert [(finding.code, finding.detected_step) for finding in training.findings()] == [("NUM005", 9)]
    dead = {**ALIVE, "activation_dead_fraction": 0.9}
    assert watched_by(LowPrecision()).run(30, gradient_zero_fraction=FADING, **dead).findings() == []


def test_a_place_that_cuts_the_gradient_is_no_underflow() -> None:
    zeros = {"first": 1.0, "second": 1.0, "third": 0.6, "head": 0.1}
    even = {"first": 0.0, "second": 0.0, "third": 1e-3, "head": 2e-3}
    cut = watched_by(LowPrecision()).run(30, gradient_zero_fraction=zeros, gradient_rms=even, **ALIVE)
    assert cut.findings() == []
    fading = watched_by(LowPrecision())
    fading.run(12, gradient_zero_fraction=zeros, gradient_rms={**even, "third": 1e-5}, **ALIVE)
    assert fading.alarms() == ["NUM005"]


def test_small_gradients_lost_on_the_way_to_the_optimizer() -> None:
    sizes = {"first": 1e-5, "second": 1e-5, "third": 1e-4, "head": 1e-2}
    left = {"first": 0.0, "second": 0.0, "third": 0.01, "head": 0.1}
    training = watched_by(LowPrecision())
    training.run(6, gradient_rms=sizes, stepped_gradient_norm=left, scalars={"clip_coefficient": 0.5})
    assert training.alarms() == ["NUM005"]
    masked = watched_by(LowPrecision())  # the head's bias is far smaller than all that was lost, and is left
    largest = {"first": 1e-4, "second": 1e-4, "third": 1e-3, "head.weight": 1e-1, "head.bias": 1e-8}
    zeros = {"gradient_max_abs": largest, "stepped_gradient_max_abs": {"first": 0.0, "second": 0.0}}
    masked.run(6, gradient_rms=sizes, stepped_gradient_norm=left, scalars={"clip_coefficient": 0.5}, **zeros)
    assert masked.findings() == []
    clipped = watched_by(LowPrecision())
    clipped.run(20, gradient_rms=sizes, stepped_gradient_norm=0.01, scalars={"clip_coefficient": 0.1})
    assert clipped.findings() == []


def test_an_overflow_is_named_where_the_values_reach_the_limit() -> None:
    training = watched_by(LowPrecision()).run(3)
    training.run(1, activation_nonfinite_count=BAD, activation_max_abs={"second": 65000.0, "first": 20.0})
    (finding,) = training.findings()
    assert (finding.severity, finding.layers) == (Severity.CRITICAL, ("second",))
    cast = watched_by(LowPrecision()).run(1, activation_nonfinite_count=BAD, activation_max_abs={"first_relu": 2e5})
    assert cast.findings()[0].layers == ("first_relu",)
    diverged = watched_by(LowPrecision()).run(1, activation_nonfinite_count=BAD, activation_max_abs=1e30)
    assert diverged.findings() == []


def test_a_scaler_that_skips_for_ever() -> None:
    skipped = {"step_skipped": 1.0, "loss_scale": 2.0}
    training = watched_by(LowPrecision()).run(19, scalars=skipped)
    assert training.findings() == []
    training.run(1, scalars=skipped)
    assert training.findings()[0].first_step == 0
    training.run(1)
    assert not training.findings()[0].ongoing
    few = watched_by(LowPrecision())
    for _ in range(10):
        few.run(4, scalars={"step_skipped": 1.0, "loss_scale": 0.5}).run(4)
    assert few.findings() == []


def rounded(steps: int = 20, length: float = 1e-4, dtype: str = "bfloat16", **scalars: float) -> list[str]:
    """Matrices of 64 weights of a tenth; bf16 drops changes below 2e-4 of these."""
    training = watched_by(LowPrecision(), dtype=dtype)
    training.run(6, scalars={"loss": 2.0, "lr": 0.1}, update_norm=3e-3, weight_abs_p50=0.1)
    training.run(steps, scalars={"loss": 1.5, "lr": 0.1, **scalars}, update_norm=length, weight_abs_p50=0.1)
    return [f"{finding.code} {finding.detected_step}" for finding in training.findings()]


def test_updates_that_are_rounded_away() -> None:
    assert rounded() == ["NUM005 15"]


def test_updates_that_are_long_enough_or_small_for_a_reason_are_healthy() -> None:
    assert rounded(length=3e-3) == []
    assert rounded(dtype="float32") == []
    assert rounded(loss=0.01) == []  # next to nothing is left to learn
    assert rounded(lr=1e-3) == []  # the end of a schedule
