"""OPT008: Adam's betas are exchanged."""

from __future__ import annotations

import pytest
from tests.detect.courses import ADAM, OPT008, WITH_OPTIMIZER, falling, training


@pytest.mark.parametrize(
    ("betas", "codes"), [((0.999, 0.9), ["OPT008"]), ((0.9, 0.5), []), ((0.99, 0.95), []), ((0.9, 0.999), [])]
)
def test_betas_that_are_exchanged(betas: tuple[float, float], codes: list[str]) -> None:
    memory = (1 - betas[1]) / (1 - betas[0])
    run = training(*OPT008)
    for loss in falling(20):
        settings = {**ADAM, "optimizer_step_count": float(run.step + 1), "optimizer_momentum": betas[0]}
        scalars = {"loss": loss} | ({"optimizer_memory_ratio": memory} if run.step < 16 else {})
        run.run(1, scalars=scalars, streams=WITH_OPTIMIZER, **settings)
    assert run.alarms()[:1] == codes
    assert all(finding.ongoing for finding in run.findings())
