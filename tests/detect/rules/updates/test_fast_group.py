"""UPD001 fast-group."""

from __future__ import annotations

from tests.detect.building import watched_by

from undertow.detect.rules.updates.fast_group import FastGroup
from undertow.schema import Severity


def test_a_group_that_runs_ahead_is_named() -> None:
    training = watched_by(FastGroup)
    changes = {"optimizer_rate": {"second": 1.0, "first": 1e-3, "third": 1e-3, "head": 1e-3},
               "update_ratio": {"second": 0.5}, "update_norm": {"second": 5.0}}  # fmt: skip
    training.run(5, streams=("gradient", "weight", "update", "optimizer"), **changes)
    (finding,) = training.findings()
    assert (finding.severity, finding.layers, finding.detected_step) == (Severity.MODERATE, ("second.weight",), 2)
    # A head that is trained at a hundred times the rate, in steps that others make, too.
    usual = {**changes, "update_ratio": {"second": 0.06}, "update_norm": {"second": 0.06}}
    other = watched_by(FastGroup).run(5, streams=("gradient", "weight", "update", "optimizer"), **usual)
    assert other.findings() == []
