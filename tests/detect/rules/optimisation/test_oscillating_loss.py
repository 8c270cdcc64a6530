"""OPT004: the loss swings up and down and gets nowhere."""

from __future__ import annotations

import math

from numpy.random import default_rng
from tests.detect.courses import falling, follow, noisy, training

from undertow.detect.rules.optimisation.oscillating_loss import OscillatingLoss


def test_waves_under_a_constant_rate() -> None:
    waves = [1.0 + 0.8 * math.cos(step / 8) for step in range(250)]
    run = follow(follow(training(OscillatingLoss), falling(30, to=0.5)), noisy(waves))
    assert run.alarms() == ["OPT004"]


def test_waves_of_a_cyclic_rate_are_silent() -> None:
    waves = [1.0 + 0.8 * math.cos(step / 8) for step in range(250)]
    rates = [0.1 * (1.2 + math.cos(step / 8)) for step in range(250)]
    run = follow(follow(training(OscillatingLoss), falling(30, to=0.5)), noisy(waves), rates)
    assert run.codes() == []


def test_a_model_that_begins_anew_with_its_optimizer_makes_no_waves() -> None:
    waves = [*falling(30, to=0.5), *noisy([1.0 + 0.8 * math.cos(step / 8) for step in range(300)])]
    alarms: list[list[str]] = []
    for anew in (1.0, 0.0):
        run = training(OscillatingLoss)
        for step, loss in enumerate(waves):
            run.run(1, scalars={"loss": loss, "optimizer_made_anew": anew if step % 50 == 0 else 0.0})
        alarms.append(run.alarms())
    assert alarms == [[], ["OPT004"]]


def test_harder_data_now_and_then_make_no_waves() -> None:
    stages = [*falling(40, to=0.2)] * 8
    assert follow(training(OscillatingLoss), noisy(stages)).codes() == []


def test_noise_and_several_tasks_are_silent() -> None:
    sizes = default_rng(2).choice([0.1, 0.5, 2.3], 400)
    assert follow(training(OscillatingLoss), noisy(sizes)).codes() == []
    assert follow(training(OscillatingLoss), noisy([1.0] * 400, share=0.5)).codes() == []


def test_waves_that_die_out_are_silent() -> None:
    waves = [0.3 + 2.0 * math.exp(-step / 25) * (1 + 0.9 * math.cos(step / 8)) for step in range(300)]
    assert follow(training(OscillatingLoss), noisy(waves, share=0.01)).alarms() == []
