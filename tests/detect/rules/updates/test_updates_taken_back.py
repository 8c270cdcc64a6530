"""UPD002 updates-taken-back."""

from __future__ import annotations

from tests.detect.building import watched_by

from undertow.detect.rules.updates.updates_taken_back import UpdatesTakenBack


def taken_back(steps: int, drift: float = 0.021, cosine: float = 0.9, left: float = 1.01) -> list[str]:
    """Updates of a fiftieth of the weight, whose norm is `left` after each step and 1 before the next."""
    training = watched_by(UpdatesTakenBack).run(
        steps, update_norm=0.02, update_ratio=0.02, weight_norm=left, weight_drift=drift, update_cosine=cosine
    )
    return [f"{finding.code} {finding.detected_step}" for finding in training.findings()]


def test_updates_that_are_taken_back_before_the_next_step() -> None:
    assert taken_back(12) == ["UPD002 8"]


def test_updates_that_add_up_or_undo_one_another_are_not_taken_back() -> None:
    assert taken_back(60, drift=0.2) == []
    assert taken_back(60, cosine=-0.9) == []
    assert taken_back(60, left=1.0) == []  # nothing writes to the weights between the steps


def test_updates_that_are_taken_back_for_the_most_part() -> None:
    assert taken_back(60, drift=0.05) == ["UPD002 33"]  # half a random walk of thirty such steps: 0.055
    assert taken_back(30, drift=0.05) == []
