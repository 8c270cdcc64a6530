"""NUM003: a trained weight is NaN or infinite."""

from __future__ import annotations

from tests.detect.building import Training

from undertow.schema import Severity


def test_weight() -> None:
    training = (
        Training().run(2).run(1, weight_nonfinite_count={"third.weight": 64.0}).run(3, weight_nonfinite_count=8.0)
    )
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("NUM003", Severity.CRITICAL, ("third.weight",))
    assert (finding.first_step, finding.last_step, finding.ongoing) == (2, 5, True)
