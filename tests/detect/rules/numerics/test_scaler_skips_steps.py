"""NUM001: a loss scaler skips steps."""

from __future__ import annotations

from tests.detect.building import Training

from undertow.schema import Severity


def test_a_loss_scaler_may_skip_steps() -> None:
    skipped = {"step_skipped": 1.0, "loss_scale": 1024.0}
    training = Training().run(10, scalars=skipped, gradient_nonfinite_count=2.0).run(5)
    training.run(3, scalars=skipped, gradient_nonfinite_count=2.0).run(5)
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("NUM001", Severity.INFO)
    assert (finding.variant, finding.ongoing) == ("scaler-skips-steps", False)
    assert finding.evidence[0].value == 3.0


def test_what_is_no_longer_usual_is_left_to_another_code() -> None:
    training = Training().run(25, scalars={"step_skipped": 1.0, "loss_scale": 1024.0}, gradient_nonfinite_count=2.0)
    assert training.alarms() == ["NUM005"]


def test_skips_are_counted_without_a_gradient_block() -> None:
    training = Training().run(11, scalars={"step_skipped": 1.0}, streams=())
    assert training.codes() == ["NUM001"]
    assert training.findings()[0].evidence[0].value == 11.0
