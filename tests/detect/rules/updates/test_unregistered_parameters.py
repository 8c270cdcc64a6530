"""UPD003 unregistered-parameters."""

from __future__ import annotations

from tests.detect.building import Training

from undertow.schema import Severity


def test_layers_that_no_model_holds() -> None:
    training = Training().run(4, scalars={"unregistered_parameters": 6.0})
    assert training.alarms() == []
    (finding,) = training.run(1, scalars={"unregistered_parameters": 6.0}).findings()
    assert (finding.code, finding.layers, finding.severity) == ("UPD003", (), Severity.SEVERE)
    assert training.run(5).findings()[0].ongoing  # it is looked for in the first steps only
