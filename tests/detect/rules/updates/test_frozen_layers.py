"""UPD004 frozen-layers."""

from __future__ import annotations

from tests.detect.building import Training

from undertow.schema import Severity


def test_frozen_layers_are_one_remark_that_follows_the_model() -> None:
    frozen = {"first": 2.0, "second": 2.0}
    training = Training().run(3).run(5, gradient_state=frozen, gradient_optimizer=1.0)
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("UPD004", Severity.INFO)
    assert finding.layers == ("first.weight", "first.bias", "second.weight", "second.bias")
    assert (finding.first_step, finding.detected_step, finding.last_step) == (3, 3, 7)
    training.run(1, gradient_state={"first": 2.0})
    assert training.findings()[0].layers == ("first.weight", "first.bias")
    training.run(1)
    assert not training.findings()[0].ongoing
