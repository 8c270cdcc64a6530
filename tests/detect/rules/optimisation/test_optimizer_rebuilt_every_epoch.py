"""OPT008: another optimizer in every epoch."""

from __future__ import annotations

import pytest
from tests.detect.courses import ADAM, OPT008, WITH_OPTIMIZER, falling, training


@pytest.mark.parametrize(("every", "alarms"), [(10, ["OPT008"]), (60, [])])
@pytest.mark.parametrize("slower", [1.0, 0.5])
def test_an_optimizer_of_every_epoch(every: int, alarms: list[str], slower: float) -> None:
    run, rate = training(*OPT008), 0.1
    for loss in falling(200):
        anew = run.step > 0 and run.step % every == 0
        rate *= slower if anew else 1.0
        scalars = {"loss": loss, "lr": rate} | ({"optimizer_made_anew": 1.0} if anew else {})
        run.run(1, scalars=scalars, streams=WITH_OPTIMIZER, **ADAM)
    assert run.alarms() == (alarms if slower == 1.0 else [])
