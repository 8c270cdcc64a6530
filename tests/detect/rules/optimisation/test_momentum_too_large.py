"""OPT008: a momentum that hardly forgets, or Adam's betas exchanged."""

from __future__ import annotations

import pytest
from tests.detect.courses import ADAM, OPT008, WITH_OPTIMIZER, falling, noisy, training, with_settings


def test_usual_settings_are_silent() -> None:
    assert with_settings(falling(100)).codes() == []


def test_momentum_that_never_forgets() -> None:
    losses = [*falling(40, to=0.3), *noisy([0.8] * 60, 0.2)]
    run = with_settings(losses, optimizer_momentum=0.999)
    assert run.alarms() == ["OPT008"]
    assert with_settings(losses, optimizer_momentum=0.9).codes() == []
    assert with_settings(falling(200), optimizer_momentum=0.997).codes() == []
    assert with_settings(falling(20), optimizer_momentum=0.999).alarms() == ["OPT008"]  # in no recipe


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
