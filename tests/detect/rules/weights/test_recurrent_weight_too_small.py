"""WGT003: the weight of a plain recurrence begins too small."""

from __future__ import annotations

from tests.detect.rules.weights.starts import STARTS, USUAL, scaled
from tests.detect.stacks import stack


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
