"""NUM005: updates are lost to rounding."""

from __future__ import annotations

from tests.detect.building import watched_by

from undertow.detect.rules.numerics.updates_rounded_away import UpdatesRoundedAway


def rounded(steps: int = 20, length: float = 1e-4, dtype: str = "bfloat16", **scalars: float) -> list[str]:
    """Matrices of 64 weights of a tenth; bf16 drops changes below 2e-4 of these."""
    training = watched_by(UpdatesRoundedAway, dtype=dtype)
    training.run(6, scalars={"loss": 2.0, "lr": 0.1}, update_norm=3e-3, weight_abs_p50=0.1)
    training.run(steps, scalars={"loss": 1.5, "lr": 0.1, **scalars}, update_norm=length, weight_abs_p50=0.1)
    return [f"{finding.code} {finding.detected_step}" for finding in training.findings()]


def test_updates_that_are_rounded_away() -> None:
    assert rounded() == ["NUM005 15"]


def test_updates_that_are_long_enough_or_small_for_a_reason_are_healthy() -> None:
    assert rounded(length=3e-3) == []
    assert rounded(dtype="float32") == []
    assert rounded(loss=0.01) == []  # next to nothing is left to learn
    assert rounded(lr=1e-3) == []  # the end of a schedule
