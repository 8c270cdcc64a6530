"""NUM002: the loss was NaN or infinite at a step that did not count."""

from __future__ import annotations

import math

from tests.detect.building import Training


def test_loss_of_a_skipped_step_is_a_remark() -> None:
    training = Training().run(1, scalars={"loss": math.inf, "step_skipped": 1.0})
    assert training.alarms() == []
    assert ("NUM002", "nonfinite-loss-skipped") in [(found.code, found.variant) for found in training.findings()]
