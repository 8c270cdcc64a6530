"""ACT001 rectified-logits."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.activations.rectified_logits import RectifiedLogits
from undertow.schema import Severity


def test_logits_that_come_out_of_a_relu() -> None:
    training = stack(RectifiedLogits, "0:Linear", "1:ReLU", "2:Linear")
    training.run(1, scalars={"loss_input_is_rectified": 1.0}).run(1, scalars={"loss_input_is_rectified": 0.0})
    assert training.codes() == []
    training.run(2, scalars={"loss_input_is_rectified": 1.0})
    (finding,) = training.findings()
    assert (finding.layers, finding.severity, finding.first_step) == (("2",), Severity.MODERATE, 2)
