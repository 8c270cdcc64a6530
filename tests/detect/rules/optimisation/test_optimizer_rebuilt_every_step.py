"""OPT008: another optimizer at every step."""

from __future__ import annotations

import math

from tests.detect.courses import falling, with_settings

from undertow.schema import Severity


def test_an_optimizer_for_every_step() -> None:
    run = with_settings(falling(10), optimizer_rebuilt=1.0, optimizer_step_count=1.0)
    (finding,) = run.findings()
    assert (finding.code, finding.severity, finding.detected_step) == ("OPT008", Severity.SEVERE, 2)
    assert finding.evidence[0].quantity == "optimizer_rebuilt"


def test_a_new_optimizer_now_and_then_is_silent() -> None:
    run = with_settings(
        falling(100),
        optimizer_rebuilt=lambda step: float(step % 20 == 0),
        optimizer_step_count=lambda step: float(step % 20 + 1),
    )
    assert run.codes() == []


def test_plain_sgd_has_no_memory_to_lose() -> None:
    run = with_settings(falling(50), optimizer_rebuilt=1.0, optimizer_step_count=math.nan, optimizer_momentum=0.0)
    assert run.codes() == []
