"""WGT006: single layers are set anew between steps."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.engine.registry import conditions_of

CONDITIONS = conditions_of("WGT006")


LAYERS = ("0:Linear", "1:Linear", "2:Linear", "head:Linear")


def set_anew(*layers: str, times: int, every: int = 20, leap: float = 3.0) -> list[str]:
    """Weights whose norm before a step is not the one that the step before had left."""
    training, norms = stack(CONDITIONS, *LAYERS), dict.fromkeys((f"{n}.weight" for n in "012"), 1.0)
    for _ in range(times):
        training.run(every, scalars={"loss": 1.0}, weight_norm={**norms, "head.weight": 1.0})
        ratio = {f"{layer}.weight": 1e-3 / 1.2 for layer in layers}  # it was 1.2 before this step
        training.run(1, scalars={"loss": leap}, update_ratio=ratio, weight_norm=1.0)
    return [f"{f.code} {f.layers[0]} {f.detected_step}" for f in training.findings()]


def test_a_head_that_is_set_anew_in_every_epoch() -> None:
    assert set_anew("head", times=4) == ["WGT006 head.weight 41"]


def test_once_is_no_habit() -> None:
    assert set_anew("head", times=1) == []


def test_weights_that_are_clamped_or_projected_at_every_step_are_healthy() -> None:
    assert set_anew("head", times=30, every=1) == []


def test_without_a_leap_of_the_loss_it_does_no_harm() -> None:
    assert set_anew("head", times=4, leap=1.01) == []


def test_a_model_that_is_set_anew_as_a_whole_is_another_run() -> None:
    assert set_anew("0", "1", "2", "head", times=4) == []
