"""NUM005: a loss scaler skips every step."""

from __future__ import annotations

from tests.detect.building import watched_by

from undertow.detect.rules.numerics.scaler_finds_no_scale import ScalerFindsNoScale


def test_a_scaler_that_skips_for_ever() -> None:
    skipped = {"step_skipped": 1.0, "loss_scale": 2.0}
    training = watched_by(ScalerFindsNoScale).run(19, scalars=skipped)
    assert training.findings() == []
    training.run(1, scalars=skipped)
    assert training.findings()[0].first_step == 0
    training.run(1)
    assert not training.findings()[0].ongoing
    few = watched_by(ScalerFindsNoScale)
    for _ in range(10):
        few.run(4, scalars={"step_skipped": 1.0, "loss_scale": 0.5}).run(4)
    assert few.findings() == []
