"""DST001 on frames of replicas whose batch normalisations are not kept equal."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.distributed.unshared_running_averages import UnsharedRunningAverages


@pytest.mark.parametrize(("other", "found"), [(1.0, False), (1.5, True)])
def test_replicas_in_one_process_that_keep_averages_of_their_own(other: float, found: bool) -> None:
    parts = ("one.a:Linear", "one.norm:BatchNorm1d", "two.a:Linear", "two.norm:BatchNorm1d")
    training = stack(UnsharedRunningAverages, *parts)
    for _ in range(6):
        training.run(1, norm_average={"one.norm": 1.0, "two.norm": other}, weight_mean=0.01)
    assert [finding.layers for finding in training.findings()] == ([("one.norm", "two.norm")] if found else [])
