"""NUM005: an output overflows half precision."""

from __future__ import annotations

from tests.detect.building import watched_by

from undertow.detect.rules.numerics.output_overflow import OutputOverflow
from undertow.schema import Severity

BAD = {"second": 3.0, "second_relu": 3.0, "third": 64.0, "head": 64.0}


def test_an_overflow_is_named_where_the_values_reach_the_limit() -> None:
    training = watched_by(OutputOverflow).run(3)
    training.run(1, activation_nonfinite_count=BAD, activation_max_abs={"second": 65000.0, "first": 20.0})
    (finding,) = training.findings()
    assert (finding.severity, finding.layers) == (Severity.CRITICAL, ("second",))
    cast = watched_by(OutputOverflow).run(1, activation_nonfinite_count=BAD, activation_max_abs={"first_relu": 2e5})
    assert cast.findings()[0].layers == ("first_relu",)
    diverged = watched_by(OutputOverflow).run(1, activation_nonfinite_count=BAD, activation_max_abs=1e30)
    assert diverged.findings() == []
