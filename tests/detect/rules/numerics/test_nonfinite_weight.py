"""NUM003: a trained weight is NaN or infinite."""

from __future__ import annotations

import math

from tests.detect.building import Training

from undertow.schema import Severity


def test_weight() -> None:
    training = (
        Training().run(2).run(1, weight_nonfinite_count={"third.weight": 64.0}).run(3, weight_nonfinite_count=8.0)
    )
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("NUM003", Severity.CRITICAL, ("third.weight",))
    assert (finding.first_step, finding.last_step, finding.ongoing) == (2, 5, True)


def test_a_frozen_mask_may_hold_infinities() -> None:
    training = Training().run(
        9, gradient_state={"first.weight": 2.0}, weight_nonfinite_count={"first.weight": 10.0},
        gradient_zero_fraction={"first.weight": math.nan},
    )  # fmt: skip
    assert training.alarms() == []
    assert sorted(training.codes()) == ["NUM003", "UPD004"]
