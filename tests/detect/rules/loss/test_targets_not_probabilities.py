"""LSS003: targets of a binary cross-entropy that are no probabilities."""

from __future__ import annotations

from tests.detect.courses import training

from undertow.detect.rules.loss.targets_not_probabilities import TargetsNotProbabilities
from undertow.detect.rules.loss.targets_out_of_reach import TargetsOutOfReach
from undertow.schema import LossKind

RANGES = (TargetsOutOfReach, TargetsNotProbabilities)


def test_targets_that_are_no_probabilities() -> None:
    scalars = {"targets_beyond_reach": 0.5, "loss_kind": LossKind.BINARY_OF_LOGITS}
    (finding,) = training(*RANGES).run(2, scalars=scalars).findings()
    assert (finding.code, finding.layers) == ("LSS003", ())
    assert "between 0 and 1" in finding.summary
