"""UPD003 stale-optimizer."""

from __future__ import annotations

import math

from tests.detect.building import Training

from undertow.schema import GradientState, Severity


def test_an_optimizer_whose_parameters_get_no_gradient_any_more() -> None:
    nothing = {"gradient_state": float(GradientState.NONE), "update_norm": 0.0, "gradient_zero_fraction": math.nan}
    training = Training().run(10).run(4, **nothing)
    assert "UPD003" not in training.alarms()
    (finding,) = [one for one in training.run(1, **nothing).findings() if one.code == "UPD003"]
    assert (finding.severity, finding.first_step, finding.layers) == (Severity.CRITICAL, 10, ())
    (finding,) = [one for one in training.run(1).findings() if one.code == "UPD003"]
    assert not finding.ongoing
