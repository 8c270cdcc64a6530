"""OPT008: Adam's second moment remembers too long."""

from __future__ import annotations

import pytest
from tests.detect.courses import OPT008, noisy, training, with_settings


@pytest.mark.parametrize(("second", "codes"), [(0.9999, ["OPT008"]), (0.999, [])])
def test_a_second_moment_that_remembers_too_long(second: float, codes: list[str]) -> None:
    run = training(*OPT008)
    for step in range(80):
        size = 0.1 if step < 60 else 2.0  # of each number, over the rate
        scalars = {"loss": 0.01 if step < 60 else 3.0, "lr": 0.001}
        scalars |= {"optimizer_memory_ratio": (1 - second) / 0.1} if step < 16 else {}
        parameters = run.layers.parameters[0].parameter_count
        run.run(1, scalars=scalars, update_norm=0.001 * size * parameters**0.5, update_ratio=0.01)
    assert run.alarms() == codes


def test_harder_data_that_are_learnt_are_silent() -> None:
    losses = [*noisy([0.3] * 60), 9.0, 8.0, 7.0, 5.0, 4.0, 3.0]
    run = with_settings(losses, optimizer_gradient_rms=lambda step: 20.0 if step >= 60 else 1.0)
    assert run.codes() == []
