"""NUM003: a frozen parameter is NaN or infinite."""

from __future__ import annotations

import math

from tests.detect.building import Training


def test_a_frozen_mask_may_hold_infinities() -> None:
    training = Training().run(
        9, gradient_state={"first.weight": 2.0}, weight_nonfinite_count={"first.weight": 10.0},
        gradient_zero_fraction={"first.weight": math.nan},
    )  # fmt: skip
    assert training.alarms() == []
    assert sorted(training.codes()) == ["NUM003", "UPD004"]
