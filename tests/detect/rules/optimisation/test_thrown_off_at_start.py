"""OPT001: the first steps make a classifier worse than chance."""

from __future__ import annotations

import numpy as np
from tests.detect.courses import OPT001, cross_entropy, noisy, training

from undertow.schema import Severity


def test_what_had_learnt_was_not_thrown_off_by_its_first_steps() -> None:
    losses = [*noisy(np.geomspace(2.3, 0.01, 30)), *noisy(np.geomspace(12.0, 0.5, 50))]
    variants = [finding.variant for finding in cross_entropy(training(*OPT001), losses).findings()]
    assert "thrown-off-at-start" not in variants


def test_first_steps_that_make_a_classifier_worse_than_a_guess() -> None:
    thrown = [2.3, *noisy([4.2] * 20), *noisy(np.geomspace(4.0, 1.5, 30))]
    run = cross_entropy(training(*OPT001), thrown)
    (finding,) = run.findings()
    assert (finding.code, finding.severity, finding.ongoing) == ("OPT001", Severity.MODERATE, False)
    assert finding.detected_step <= 11
    assert cross_entropy(training(*OPT001), [2.3, *noisy([2.9] * 30)]).codes() == []
    assert cross_entropy(training(*OPT001), [2.3, 6.0, 5.0, 4.0, *noisy([2.3] * 30)]).codes() == []
