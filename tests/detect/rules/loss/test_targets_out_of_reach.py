"""LSS003: the last activation cannot reach the targets."""

from __future__ import annotations

import math

import pytest
from tests.detect.courses import training

from undertow.detect.rules.loss.targets_out_of_reach import TargetsOutOfReach
from undertow.schema import LossKind


def test_targets_that_the_output_cannot_reach() -> None:
    run = training(TargetsOutOfReach).run(2, scalars={"targets_beyond_reach": 0.5})
    (finding,) = run.findings()
    assert (finding.code, finding.layers, finding.detected_step) == ("LSS003", ("head",), 1)
    run.run(1, scalars={"targets_beyond_reach": 0.0})
    assert [entry[0] for entry in run.log] == ["opened", "closed"]


@pytest.mark.parametrize("share", [0.0, 0.05, math.nan])
def test_noise_around_a_limit_is_silent(share: float) -> None:
    assert training(TargetsOutOfReach).run(20, scalars={"targets_beyond_reach": share}).codes() == []


def test_targets_that_are_no_probabilities() -> None:
    scalars = {"targets_beyond_reach": 0.5, "loss_kind": LossKind.BINARY_OF_LOGITS}
    (finding,) = training(TargetsOutOfReach).run(2, scalars=scalars).findings()
    assert (finding.code, finding.layers) == ("LSS003", ())
    assert "between 0 and 1" in finding.summary
