"""WGT005: next to nothing is left of a weight matrix."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.engine.registry import conditions_of

CONDITIONS = conditions_of("WGT005")


def test_a_matrix_that_is_clamped_to_next_to_nothing() -> None:
    training = stack(CONDITIONS, "0:Linear", "1:Linear").run(2)
    training.run(1, weight_norm={"1.weight": 1e-4})
    assert training.codes() == []
    (finding,) = training.run(1, weight_norm={"1.weight": 1e-4}).findings()
    assert (finding.code, finding.layers, finding.first_step) == ("WGT005", ("1.weight",), 2)
    assert not training.run(1).findings()[0].ongoing


def test_a_matrix_that_starts_at_zero_and_biases_are_left_alone() -> None:
    training = stack(CONDITIONS, "0:Linear").run(1, weight_norm={"0.weight": 0.0}, update_norm=0.0)
    small = {"0.weight": 1e-3, "0.bias": 1e-4}
    updates = {path: 1e-3 * norm for path, norm in small.items()}
    assert training.run(5, weight_norm=small, update_norm=updates).codes() == []
