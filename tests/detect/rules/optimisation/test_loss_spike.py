"""OPT003: the loss leaps up, and comes back."""

from __future__ import annotations

import numpy as np
from numpy.random import default_rng
from tests.detect.courses import cross_entropy, falling, follow, noisy, training

from undertow.detect.rules.optimisation.loss_spike import LossSpike
from undertow.schema import Severity


def test_a_spike_is_a_hint_and_an_alarm_once_it_is_over() -> None:
    run = cross_entropy(training(LossSpike), falling(60))
    cross_entropy(run, [20.0])
    assert [finding.severity for finding in run.findings()] == [Severity.MILD]
    cross_entropy(run, noisy([0.23] * 4))
    (finding,) = run.findings()
    assert (finding.code, finding.severity, finding.first_step) == ("OPT003", Severity.MODERATE, 60)


def test_other_data_that_are_learnt_little_by_little_stay_a_hint() -> None:
    run = cross_entropy(training(LossSpike), falling(60))
    cross_entropy(run, [*noisy(np.geomspace(20.0, 0.23, 12)), *noisy([0.23] * 6)])
    assert [finding.severity for finding in run.findings()] == [Severity.MILD]


def test_a_small_spike_of_a_loss_without_a_natural_size_stays_a_hint() -> None:
    run = follow(follow(training(LossSpike), falling(60)), [5.0, *noisy([0.23] * 10)])
    assert [finding.severity for finding in run.findings()] == [Severity.MILD]


def test_a_jump_that_stays_never_is_an_alarm() -> None:
    run = follow(follow(training(LossSpike), falling(60)), noisy(np.geomspace(5, 1, 60)))
    assert run.alarms() == []


def test_a_term_every_tenth_step_is_silent() -> None:
    losses = [loss + (5.0 if step % 10 == 9 else 0.0) for step, loss in enumerate(falling(200))]
    assert follow(training(LossSpike), losses).codes() == []


def test_a_restart_of_the_rate_explains_it() -> None:
    run = follow(training(LossSpike), falling(60), [0.001] * 60)
    follow(run, [20.0, *noisy([0.23] * 20)], [0.1] * 21)
    assert run.codes() == []


def test_batches_of_one_are_silent() -> None:
    losses = np.exp(default_rng(0).normal(-3, 2, 500))
    assert follow(training(LossSpike), losses).codes() == []
