"""UPD002 slow-group."""

from __future__ import annotations

from tests.detect.building import watched_by

from undertow.detect.rules.updates.slow_group import SlowGroup
from undertow.schema import Severity


def test_a_group_that_stays_behind_is_named() -> None:
    training = watched_by(SlowGroup)
    bound = 8**-0.5
    changes = {"optimizer_rate": {"first": 0.1, "second": 0.1, "third": 0.1, "head": 1e-5},
               "update_ratio": {"head": 1e-7}, "weight_max_abs": 0.99 * bound, "weight_mean": 0.0,
               "weight_std": bound / 3**0.5, "weight_kurtosis": -1.2}  # fmt: skip
    training.run(5, streams=("gradient", "weight", "update", "optimizer"), **changes)
    (finding,) = training.findings()
    assert (finding.severity, finding.layers) == (Severity.MODERATE, ("head.weight",))
    trained = {**changes, "weight_kurtosis": 1.0}
    other = watched_by(SlowGroup).run(5, streams=("gradient", "weight", "update", "optimizer"), **trained)
    assert [finding.severity for finding in other.findings()] == [Severity.MILD]
    resting = {**changes, "optimizer_rate": {"first": 0.1, "second": 0.1, "third": 0.1, "head": 0.0}}
    other = watched_by(SlowGroup).run(10, streams=("gradient", "weight", "update", "optimizer"), **resting)
    assert other.findings() == []


def test_most_of_a_model_can_stay_behind() -> None:
    bound = 8**-0.5
    changes = {"optimizer_rate": {"first": 1e-5, "second": 1e-5, "third": 1e-5, "head": 0.1},
               "weight_max_abs": 0.99 * bound, "weight_mean": 0.0, "weight_std": bound / 3**0.5,
               "weight_kurtosis": -1.2}  # fmt: skip
    streams = ("gradient", "weight", "update", "optimizer")
    for slow, named in ((1e-6, ("first.weight", "second.weight", "third.weight")), (1e-3, None)):
        ratios = {"first": slow, "second": slow, "third": slow, "head": 1e-2}
        training = watched_by(SlowGroup).run(5, streams=streams, update_ratio=ratios, **changes)
        assert [finding.layers for finding in training.findings()] == ([named] if named else [])


def test_a_member_whose_optimizer_shares_the_step_of_the_others() -> None:
    """Each optimizer has a frame of its own; optimizers in turn are not compared."""
    bound = 8**-0.5
    new = {"weight_max_abs": 0.99 * bound, "weight_mean": 0.0, "weight_std": bound / 3**0.5, "weight_kurtosis": -1.2}
    streams = ("gradient", "weight", "update", "optimizer")
    for step_apart, named in ((0, [("first.weight", "second.weight", "third.weight")]), (1, [])):
        training = watched_by(SlowGroup, names=("first", "second", "third", "a", "b", "c"))
        for _ in range(4):
            slow = {"optimizer_rate": 1e-7, "update_ratio": 1e-7, "only": ("first", "second", "third")}
            training.run(1, streams=streams, **slow, **new)
            training.step -= 1 - step_apart
            training.run(1, streams=streams, optimizer_rate=1e-3, only=("a", "b", "c"), **new)
        assert [finding.layers for finding in training.findings()] == named
