"""OPT008: Adam's eps is larger than its gradients."""

from __future__ import annotations

from tests.detect.courses import ADAM, OPT008, WITH_OPTIMIZER, falling, noisy, training, with_settings


def test_eps_above_every_gradient() -> None:
    run = with_settings(noisy([2.3] * 10, 0.01), optimizer_eps_ratio=0.01, update_ratio=1e-5, update_norm=1e-5)
    assert run.alarms() == ["OPT008"]
    assert run.findings()[0].evidence[0].quantity == "optimizer_eps_ratio"


def test_gradients_that_vanish_in_some_layers_are_not_the_fault_of_eps() -> None:
    ratios = {"first.weight": 1e-9, "second.weight": 1e-6, "head.weight": 1e5}
    run = with_settings(noisy([2.3] * 10, 0.01), optimizer_eps_ratio=ratios, update_ratio=1e-5, update_norm=1e-5)
    assert run.codes() == []


def test_gradients_that_fade_later_are_not_the_fault_of_eps() -> None:
    run = with_settings(
        noisy([2.3] * 20, 0.01), optimizer_eps_ratio=lambda step: 1e4 if step < 8 else 1e-6,
        update_ratio=1e-5, update_norm=1e-5,
    )  # fmt: skip
    assert run.codes() == []


def test_gradients_below_eps_by_success_are_silent() -> None:
    def ratio(step: int) -> float:
        return 10.0 if step < 60 else 0.01

    run = with_settings(falling(100, to=1e-4), optimizer_eps_ratio=ratio, update_ratio=1e-5, update_norm=1e-5)
    assert run.codes() == []


def test_an_unusual_eps_above_the_gradients() -> None:
    for eps, alarms in ((1e-2, ["OPT008"]), (1e-8, [])):
        run = training(*OPT008)
        for loss in falling(10, to=0.9):
            scalars = {"loss": loss, "optimizer_eps": eps}
            run.run(1, scalars=scalars, streams=WITH_OPTIMIZER, **{**ADAM, "optimizer_eps_ratio": 0.4})
        assert run.alarms() == alarms
