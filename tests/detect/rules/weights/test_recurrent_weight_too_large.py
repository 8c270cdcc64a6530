"""WGT003: the weight of a plain recurrence begins too large."""

from __future__ import annotations

import pytest
from tests.detect.rules.weights.starts import STARTS, USUAL, scaled
from tests.detect.stacks import stack


@pytest.mark.parametrize(("calls", "found"), [(1.0, []), (16.0, ["0"])])
def test_a_recurrence_that_is_written_out(calls: float, found: list[str]) -> None:
    training = stack(STARTS, "0:Linear", "1:Linear").run(
        1, weight_norm=scaled(_0=3.0, _1=0.58), update_norm=0.0, update_ratio=0.0, activation_std=1.0,
        activation_sample_spread=1.0, activation_calls={"0": calls, "1": 1.0},
    )  # fmt: skip
    assert [layer.removesuffix(".weight") for one in training.findings() for layer in one.layers] == found


def test_a_recurrence_that_multiplies() -> None:
    training = stack(STARTS, "0:RNN", "1:Linear")
    training.run(1, weight_norm={"0.weight_hh_l0": 2.3 * USUAL}, update_norm=0.0, update_ratio=0.0, activation_std=1.0)
    assert training.findings()[0].layers == ("0.weight_hh_l0",)
