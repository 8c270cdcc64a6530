"""WGT003: the weight of a plain recurrence begins too large or too small."""

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


def test_a_small_recurrence_that_is_written_out() -> None:
    training = stack(STARTS, "0:Linear", "1:Linear")
    start = {"weight_norm": scaled(_0=0.1, _1=0.58), "update_norm": 0.0, "update_ratio": 0.0, "activation_std": 1.0}
    training.run(1, **start, activation_sample_spread=1.0, activation_calls={"0": 30.0, "1": 1.0})
    training.run(70, scalars={"loss": 2.0}, **start)
    assert [finding.layers for finding in training.findings()] == [("0.weight",)]


def test_a_recurrence_that_forgets() -> None:
    small = {"0.weight": USUAL, "0.weight_hh_l0": 0.3 * USUAL, "1.weight": USUAL}
    start = {"weight_norm": small, "update_norm": 0.0, "activation_std": 1.0}
    training = stack(STARTS, "0:RNN", "1:Linear").run(59, **start)
    assert training.codes() == []
    (finding,) = training.run(1, **start).findings()
    assert (finding.code, finding.layers) == ("WGT003", ("0.weight_hh_l0",))
    training = stack(STARTS, "0:RNN", "1:Linear")
    for step in range(90):  # it learns all the same
        training.run(1, scalars={"loss": 0.99**step}, **start)
    assert training.run(20, scalars={"loss": 1.0}, **start).codes() == []  # whatever comes later
    usual = {**start, "weight_norm": {**small, "0.weight_hh_l0": 0.58 * USUAL}}
    assert stack(STARTS, "0:RNN", "1:Linear").run(90, **usual).codes() == []
