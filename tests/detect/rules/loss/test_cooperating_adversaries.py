"""LSS003 cooperating-adversaries."""

from __future__ import annotations

import pytest
from tests.detect.courses import training

from undertow.detect.rules.loss.cooperating_adversaries import CooperatingAdversaries


@pytest.mark.parametrize(("other", "found"), [(-1.0, ["LSS003"]), (1.0, []), (0.0, [])])
def test_both_losses_of_two_optimizers_fall_without_end(other: float, found: list[str]) -> None:
    """A critic without a floor falls alone; its generator's loss rises, or stays."""
    run = training(CooperatingAdversaries)
    for turn in range(80):
        grown = 0.5 - 1.15**turn
        run.run(1, scalars={"loss": grown, "lr": 1e-3, "lr_0": 1e-3})
        run.run(1, scalars={"loss": 0.5 - other * grown if other > 0 else 0.5 + abs(other) * grown, "lr_1": 1e-3})
    assert run.codes() == found
    if found:
        assert 2 * 9 < run.findings()[0].first_step < run.findings()[0].detected_step


def test_a_single_optimizer_is_left_to_others() -> None:
    run = training(CooperatingAdversaries)
    for step in range(120):
        run.run(1, scalars={"loss": 0.5 - 1.15**step})
    assert run.codes() == []
