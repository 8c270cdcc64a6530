"""OPT005: nothing is learnt."""

from __future__ import annotations

import pytest
from numpy.random import default_rng
from tests.detect.courses import falling, follow, noisy, training
from tests.detect.stacks import stack

from undertow.detect.rules.optimisation.not_learning import NotLearning
from undertow.schema import Severity


def test_weights_that_moved_for_nothing() -> None:
    run = follow(training(NotLearning), noisy([2.3] * 100, share=0.01), weight_drift=0.5)
    (finding,) = run.findings()
    assert (finding.code, finding.severity) == ("OPT005", Severity.MODERATE)
    assert finding.confidence < 0.7


def test_a_task_that_becomes_harder() -> None:
    losses = noisy([*[1.6, 3.6, 4.1, 4.6, 4.7], *[5.2] * 200], share=0.005)
    assert follow(training(NotLearning), losses, weight_drift=0.5).codes() == []


def test_weights_that_hardly_moved_get_more_time() -> None:
    run = follow(training(NotLearning), noisy([2.3] * 300, share=0.01), weight_drift=0.1)
    assert run.codes() == []
    follow(run, noisy([2.3] * 150, share=0.01), weight_drift=0.1)
    assert run.codes() == ["OPT005"]


@pytest.mark.parametrize(("samples", "found"), [(4.0, ["OPT005"]), (0.05, [])])
def test_a_large_table_gets_more_time(samples: float, found: list[str]) -> None:
    run = stack(NotLearning, "table:Embedding", "0:Linear")  # of eight rows
    for loss in noisy([2.3] * 120, share=0.01):
        run.run(1, scalars={"loss": loss, "loss_rows": samples}, weight_drift=0.5)
    assert run.codes() == found


def test_a_classifier_that_is_no_better_than_a_guess() -> None:
    def detected(level: float, steps: int = 300) -> list[int]:
        run, facts = training(NotLearning), {"loss_kind": 1.0, "loss_classes": 2.0, "loss_reduction": 1.0}
        for loss in noisy([0.75] * 5 + [level] * steps, share=0.02):
            run.run(1, scalars={"loss": loss, **facts}, weight_drift=0.1)
        return [finding.detected_step for finding in run.findings()]

    assert detected(0.693) == [149]
    assert detected(0.65) == []
    assert detected(0.693, steps=100) == []


def test_many_classes_get_more_time() -> None:
    run = training(NotLearning)
    for loss in noisy([7.6] * 500, share=0.005):
        run.run(1, scalars={"loss": loss, "loss_classes": 2000.0}, weight_drift=0.5)
    assert run.codes() == []


def test_slow_learning_noisy_losses_and_rewards_are_silent() -> None:
    assert follow(training(NotLearning), falling(500, to=0.8), weight_drift=0.5).codes() == []
    assert follow(training(NotLearning), noisy([2.3] * 500, share=0.2), weight_drift=0.5).codes() == []
    rewards = default_rng(0).normal(0, 0.1, 500)
    assert follow(training(NotLearning), rewards, weight_drift=0.5).codes() == []


def test_a_warm_up_does_not_count() -> None:
    rates = [0.1 * min(1.0, (step + 1) / 200) for step in range(220)]
    assert follow(training(NotLearning), noisy([2.3] * 220, 0.01), rates, weight_drift=0.5).codes() == []


def test_a_classifier_that_knows_how_common_each_answer_is_and_no_more() -> None:
    known = {
        "loss_kind": 1.0, "loss_classes": 10.0, "loss_reduction": 1.0, "loss_rows": 64.0,
        "label_entropy_pooled": 1.5, "lr": 0.1,
    }  # fmt: skip
    for level, codes in ((1.5, ["OPT005"]), (1.4, [])):
        run = training(NotLearning)
        for loss in [3.0, 2.5, 2.0, 1.8, *noisy([level] * 160, 0.01)]:
            run.run(1, scalars=known | {"loss": loss})
        assert run.codes() == codes


@pytest.mark.parametrize(("agreement", "found"), [(0.8, []), (0.1, ["OPT005"])])
def test_predictions_that_fit_their_targets_are_learning(agreement: float, found: list[str]) -> None:
    run = training(NotLearning)
    for loss in noisy([0.69] * 100, share=0.01):
        run.run(1, scalars={"loss": loss, "output_agreement": agreement}, weight_drift=0.5)
    assert run.codes() == found
