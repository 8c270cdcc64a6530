"""GRD009: two losses work against each other."""

from __future__ import annotations

import math

from tests.detect.building import watched_by

from undertow.detect.rules.gradients.conflicting_losses import ConflictingLosses
from undertow.schema import Severity


def test_two_losses_that_oppose_each_other_are_a_remark() -> None:
    training = watched_by(ConflictingLosses)
    training.run(25, gradient_noise_scale=math.inf, scalars={"backward_count": 2.0})
    assert [(finding.code, finding.severity) for finding in training.findings()] == [("GRD009", Severity.MILD)]
