"""DST002 on frames of a training in several processes."""

from __future__ import annotations

import numpy as np
from tests.detect.building import Training

from undertow.schema import Severity


def test_the_rank_that_alone_is_not_finite_is_named() -> None:
    training = Training().run(3, scalars={"ranks": 8.0})
    training.run(1, scalars={"ranks": 8.0, "loss": np.nan, "rank_nonfinite": 5.0, "ranks_nonfinite": 1.0})
    training.run(2, scalars={"ranks": 8.0})
    (finding,) = [one for one in training.findings() if one.code == "DST002"]
    assert (finding.first_step, finding.severity, finding.ongoing) == (3, Severity.CRITICAL, False)
    assert "Rank 5" in finding.summary
    assert not finding.layers


def test_a_step_that_the_scaler_skips_blames_no_rank() -> None:
    bad = {"ranks": 8.0, "rank_nonfinite": 5.0, "ranks_nonfinite": 1.0, "step_skipped": 1.0}
    assert "DST002" not in Training().run(3, scalars=bad).codes()
