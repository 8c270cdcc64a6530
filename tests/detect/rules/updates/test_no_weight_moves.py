"""UPD003 no-weight-moves."""

from __future__ import annotations

from tests.detect.building import Training

from undertow.schema import Severity


def test_no_weight_has_ever_moved() -> None:
    training = Training().run(9, update_norm=0.0)
    assert training.alarms() == []
    (finding,) = [one for one in training.run(1, update_norm=0.0).findings() if one.severity.is_alarm]
    assert (finding.code, finding.layers, finding.severity) == ("UPD003", (), Severity.CRITICAL)
    assert "zero_grad" in finding.summary
    (finding,) = [one for one in training.run(1).findings() if one.severity.is_alarm]
    assert not finding.ongoing
