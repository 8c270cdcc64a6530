"""LSS004: micro-batches of unequal size count alike."""

from __future__ import annotations

from tests.detect.courses import training

from undertow.detect.rules.loss.unequal_micro_batches import UnequalMicroBatches
from undertow.schema import Severity


def test_rows_of_small_micro_batches_that_count_more() -> None:
    run = training(UnequalMicroBatches).run(4, scalars={"backward_count": 4.0, "micro_batch_spread": 3.0})
    (finding,) = run.findings()
    assert (finding.code, finding.severity, finding.detected_step) == ("LSS004", Severity.MODERATE, 3)
    assert "3 times" in finding.summary


def test_a_small_last_batch_is_no_news() -> None:
    run = training(UnequalMicroBatches)
    for _ in range(5):
        run.run(3, scalars={"backward_count": 4.0, "micro_batch_spread": 1.2})
        run.run(1, scalars={"backward_count": 4.0, "micro_batch_spread": 8.0})
    assert run.codes() == []
