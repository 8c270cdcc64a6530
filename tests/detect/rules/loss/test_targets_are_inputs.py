"""LSS003: the targets are the inputs themselves."""

from __future__ import annotations

import pytest
from tests.detect.courses import training

from undertow.detect.rules.loss.targets_are_inputs import TargetsAreInputs


def test_targets_that_are_the_inputs() -> None:
    run = training(TargetsAreInputs).run(1, scalars={"targets_are_inputs": 1.0})
    assert run.codes() == []
    (finding,) = run.run(1, scalars={"targets_are_inputs": 1.0}).findings()
    assert (finding.code, finding.first_step, finding.detected_step) == ("LSS003", 0, 1)
    assert training(TargetsAreInputs).run(5, scalars={"targets_are_inputs": 0.0}).codes() == []
    (finding,) = training(TargetsAreInputs).run(2, scalars={"targets_are_inputs": 2.0}).findings()
    assert "wrong way" in finding.summary


@pytest.mark.parametrize(("fall", "found"), [(0.95, ["LSS003"]), (0.99, [])])
def test_targets_that_are_the_inputs_behind_a_code(fall: float, found: list[str]) -> None:
    run = training(TargetsAreInputs)
    for step in range(150):
        run.run(1, scalars={"loss": 3.0 * fall**step} | ({"targets_are_inputs": 0.5} if step < 16 else {}))
    assert run.codes() == found
