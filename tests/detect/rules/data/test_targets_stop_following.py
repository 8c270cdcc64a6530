"""DAT004 targets-stop-following."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from tests.detect.stacks import noisy, training

from undertow.detect.rules.data.bad_batch import BadBatch
from undertow.detect.rules.data.targets_stop_following import TargetsStopFollowing
from undertow.schema import LossKind


@pytest.mark.parametrize(
    ("after", "before_it", "since", "found"),
    [
        ([2.4] * 40, 0.01, 0.01, [("DAT004", 60, 84)]),
        (np.geomspace(3.5, 1.0, 40), 0.01, 0.01, []),
        ([2.4] * 40, 1.0, 0.01, []),
        ([2.4] * 40, 0.01, 0.5, []),
    ],
    ids=["nothing is learnt", "another task is learnt", "thrown about before", "thrown about by it"],
)
def test_data_that_stay_bad(
    after: Iterable[float], before_it: float, since: float, found: list[tuple[str, int, int]]
) -> None:
    run = training(BadBatch, TargetsStopFollowing)
    for step, loss in enumerate([*noisy(np.geomspace(2.3, 0.5, 60)), 4.0, *noisy(after)]):
        kind = {"loss_kind": LossKind.CROSS_ENTROPY, "loss_classes": 10.0}
        size = before_it if step == 59 else since if step == 61 else 0.01
        run.run(1, scalars={"loss": loss, **kind}, update_ratio=size, update_norm=10 * size)
    alarms = [finding for finding in run.findings() if finding.severity.is_alarm]
    assert [(one.code, one.first_step, one.detected_step) for one in alarms] == found
