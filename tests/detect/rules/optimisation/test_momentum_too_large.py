"""OPT008: a momentum that hardly forgets."""

from __future__ import annotations

from tests.detect.courses import falling, noisy, with_settings


def test_usual_settings_are_silent() -> None:
    assert with_settings(falling(100)).codes() == []


def test_momentum_that_never_forgets() -> None:
    losses = [*falling(40, to=0.3), *noisy([0.8] * 60, 0.2)]
    run = with_settings(losses, optimizer_momentum=0.999)
    assert run.alarms() == ["OPT008"]
    assert with_settings(losses, optimizer_momentum=0.9).codes() == []
    assert with_settings(falling(200), optimizer_momentum=0.997).codes() == []
    assert with_settings(falling(20), optimizer_momentum=0.999).alarms() == ["OPT008"]  # in no recipe
