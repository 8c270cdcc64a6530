"""OPT001: the loss diverges, or what was learnt is lost."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng
from tests.detect.courses import OPT001, cross_entropy, falling, follow, noisy, training

from undertow.schema import Severity


def test_records_again_and_again() -> None:
    run = cross_entropy(training(*OPT001), noisy(np.geomspace(2.3, 230, 30)))
    (finding,) = run.findings()
    assert (finding.code, finding.severity, finding.ongoing) == ("OPT001", Severity.SEVERE, True)
    assert finding.detected_step <= 15


def test_one_leap_at_the_start_that_stays() -> None:
    (finding,) = cross_entropy(training(*OPT001), [2.3, *noisy(np.geomspace(140, 60, 30))]).findings()
    assert (finding.code, finding.severity) == ("OPT001", Severity.SEVERE)
    assert finding.detected_step <= 11
    assert cross_entropy(training(*OPT001), [2.3, 140, 70, 30, *noisy([2.3] * 30)]).codes() == []


def test_a_loss_that_grows_with_its_targets_is_a_hint() -> None:
    run = follow(training(*OPT001), noisy(np.geomspace(0.1, 2, 60)))
    assert [finding.severity for finding in run.findings()] == [Severity.MILD]


def test_large_updates_are_the_witness_where_the_loss_has_no_natural_size() -> None:
    run = follow(training(*OPT001), noisy(np.geomspace(0.1, 2, 60)), update_ratio=0.5, update_norm=5.0)
    assert run.alarms() == ["OPT001"]


def test_a_cross_entropy_below_that_of_a_guess_has_not_diverged() -> None:
    assert cross_entropy(training(*OPT001), noisy(np.geomspace(0.01, 1, 60))).codes() == []


@pytest.mark.parametrize(("later", "severity"), [(0.95, Severity.MILD), (0.3, Severity.SEVERE)])
def test_beside_answers_that_stay_right_a_rising_loss_is_a_hint(later: float, severity: Severity) -> None:
    run = training(*OPT001)
    for step, loss in enumerate([*falling(40), *noisy(np.geomspace(0.23, 23, 60))]):
        right = 0.95 if 20 < step < 50 else 0.1 if step <= 20 else later
        scalars = {"loss": loss, "loss_kind": 1.0, "loss_classes": 10.0, "output_accuracy": right}
        run.run(1, scalars=scalars)
    assert {finding.severity for finding in run.findings()} == {severity}


def test_one_jump_to_a_harder_task_is_silent() -> None:
    run = follow(training(*OPT001), falling(100, to=0.01))
    follow(run, noisy(np.geomspace(2.5, 0.5, 100)))
    assert run.codes() == []


def test_several_tasks_in_random_order_are_silent() -> None:
    sizes = default_rng(1).choice([0.02, 0.5, 2.3], 300)
    assert follow(training(*OPT001), noisy([0.02] * 4 + list(sizes))).codes() == []


@pytest.mark.parametrize("factor", [1e-5, 1.0, 1e5])
def test_the_unit_of_the_loss_does_not_matter(factor: float) -> None:
    losses = [factor * loss for loss in noisy(np.geomspace(2.3, 230, 30))]
    assert [f.detected_step for f in follow(training(*OPT001), losses).findings()] == [
        f.detected_step for f in follow(training(*OPT001), noisy(np.geomspace(2.3, 230, 30))).findings()
    ]


def test_all_that_was_learnt_is_lost() -> None:
    run = follow(training(*OPT001), falling(60))
    run = follow(follow(run, noisy([2.3] * 2), update_ratio=0.5, update_norm=5.0), noisy([2.3] * 40))
    assert run.alarms() == ["OPT001"]
    assert "lost" in run.findings()[0].summary


def test_a_classifier_that_is_back_at_a_guess_needs_no_other_witness() -> None:
    run = cross_entropy(cross_entropy(training(*OPT001), falling(60)), noisy([2.3] * 40))
    assert run.alarms() == ["OPT001"]


def test_a_term_that_is_given_more_and_more_weight_is_a_hint() -> None:
    run = follow(follow(training(*OPT001), falling(20)), noisy(np.linspace(0.3, 2.4, 60)))
    run = follow(run, noisy([2.4] * 40))
    assert [finding.severity for finding in run.findings()] == [Severity.MILD]


def test_what_had_learnt_was_not_thrown_off_by_its_first_steps() -> None:
    losses = [*noisy(np.geomspace(2.3, 0.01, 30)), *noisy(np.geomspace(12.0, 0.5, 50))]
    findings = cross_entropy(training(*OPT001), losses).findings()
    assert not any("threw" in finding.summary for finding in findings)


def test_first_steps_that_make_a_classifier_worse_than_a_guess() -> None:
    thrown = [2.3, *noisy([4.2] * 20), *noisy(np.geomspace(4.0, 1.5, 30))]
    run = cross_entropy(training(*OPT001), thrown)
    (finding,) = run.findings()
    assert (finding.code, finding.severity, finding.ongoing) == ("OPT001", Severity.MODERATE, False)
    assert finding.detected_step <= 11
    assert cross_entropy(training(*OPT001), [2.3, *noisy([2.9] * 30)]).codes() == []
    assert cross_entropy(training(*OPT001), [2.3, 6.0, 5.0, 4.0, *noisy([2.3] * 30)]).codes() == []


@pytest.mark.parametrize(("joins", "severity"), [(True, Severity.MILD), (False, Severity.SEVERE)])
def test_a_head_that_joins_has_lost_nothing(joins: bool, severity: Severity) -> None:
    """The loss of another task, or of one more, is another loss."""
    run, kind = training(*OPT001), {"loss_kind": 1.0, "loss_classes": 10.0}
    waits = {"gradient_state": {"head": 1.0 if joins else 0.0}}
    for loss in falling(60, to=0.5):
        run.run(1, scalars={"loss": loss, **kind}, **waits)
    for loss in noisy([2.4] * 60):
        run.run(1, scalars={"loss": loss, **kind})
    assert [finding.severity for finding in run.findings()] == [severity]
