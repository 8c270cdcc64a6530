"""OPT001: what was learnt is lost."""

from __future__ import annotations

import numpy as np
from tests.detect.courses import OPT001, cross_entropy, falling, follow, noisy, training

from undertow.schema import Severity


def test_all_that_was_learnt_is_lost() -> None:
    run = follow(training(*OPT001), falling(60))
    run = follow(follow(run, noisy([2.3] * 2), update_ratio=0.5, update_norm=5.0), noisy([2.3] * 40))
    assert run.alarms() == ["OPT001"]
    assert run.findings()[0].variant == "forgotten"


def test_a_classifier_that_is_back_at_a_guess_needs_no_other_witness() -> None:
    run = cross_entropy(cross_entropy(training(*OPT001), falling(60)), noisy([2.3] * 40))
    assert run.alarms() == ["OPT001"]


def test_a_term_that_is_given_more_and_more_weight_is_a_hint() -> None:
    run = follow(follow(training(*OPT001), falling(20)), noisy(np.linspace(0.3, 2.4, 60)))
    run = follow(run, noisy([2.4] * 40))
    assert [finding.severity for finding in run.findings()] == [Severity.MILD]
