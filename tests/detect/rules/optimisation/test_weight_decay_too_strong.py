"""OPT008: weight decay takes the weights away."""

from __future__ import annotations

from tests.detect.courses import falling, noisy, with_settings


def test_weight_decay_that_eats_the_weights() -> None:
    run = with_settings(
        noisy([2.3] * 10, 0.01), optimizer_weight_decay=50.0, optimizer_rate=3e-3,
        weight_norm=lambda step: 0.85**step,
    )  # fmt: skip
    (finding,) = run.findings()
    assert finding.detected_step <= 3
    assert finding.evidence[0].quantity == "optimizer_weight_decay"


def test_weight_decay_of_one_group() -> None:
    run = with_settings(
        falling(10), optimizer_weight_decay={"first.weight": 50.0, "second.weight": 0.01, "head.weight": 0.0},
        optimizer_rate=3e-3, weight_norm=lambda step: {"first.weight": 0.85**step, "second.weight": 1.0},
    )  # fmt: skip
    (finding,) = run.findings()
    assert (finding.layers, finding.detected_step <= 3) == (("first.weight",), True)


def test_weight_decay_of_what_is_no_matrix() -> None:
    run = with_settings(
        falling(10), optimizer_weight_decay={"first.bias": 50.0}, optimizer_rate=3e-3,
        weight_norm=lambda step: {"first.bias": 0.85**step},
    )  # fmt: skip
    assert [finding.layers for finding in run.findings()] == [("first.bias",)]


def test_weight_decay_that_the_weights_bear_is_silent() -> None:
    assert with_settings(falling(100), optimizer_weight_decay=0.1, optimizer_rate=1e-2).codes() == []
    run = with_settings(falling(100), optimizer_weight_decay=1.0, optimizer_rate=3e-3, weight_norm=lambda s: 0.997**s)
    assert run.codes() == []


def test_it_is_dated_by_the_setting_and_a_jump_of_the_rate_is_not_its_fault() -> None:
    late = with_settings(
        noisy([2.3] * 60, 0.01), optimizer_weight_decay=lambda step: 50.0 if step >= 30 else 0.01, optimizer_rate=3e-3,
        weight_norm=lambda step: 0.85 ** max(step - 29, 0),
    )  # fmt: skip
    (finding,) = late.findings()
    assert (finding.first_step, finding.detected_step <= 35) == (30, True)
    jump = with_settings(
        noisy([2.3] * 60, 0.01), optimizer_weight_decay=0.01, optimizer_rate=lambda step: 0.5 if step >= 30 else 1e-3,
        weight_norm=lambda step: 0.85 ** max(step - 29, 0),
    )  # fmt: skip
    assert jump.codes() == []
