"""NUM004: a module puts out NaN or infinity, and nothing comes of it."""

from __future__ import annotations

import math

import pytest
from tests.detect.building import watched_by

from undertow.detect.rules.numerics.nonfinite_output import NonfiniteOutput
from undertow.detect.rules.numerics.nonfinite_output_without_harm import NonfiniteOutputWithoutHarm
from undertow.schema import Severity

BAD = {"second": 3.0, "second_relu": 3.0, "third": 64.0, "head": 64.0}


@pytest.mark.parametrize("change", [{"scalars": {"loss": 1.0}}, {"scalars": {"loss": math.nan, "step_skipped": 1.0}}])
def test_masks_and_skipped_steps_are_only_noted(change: dict[str, dict[str, float]]) -> None:
    training = watched_by(NonfiniteOutput, NonfiniteOutputWithoutHarm).run(2)
    training.run(3, activation_nonfinite_count=BAD, **change)
    assert [finding.severity for finding in training.findings()] == [Severity.INFO]
