"""OPT007: of two optimizers in turn one has won."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tests.detect.building import Training
from tests.detect.courses import OPT007, noisy, training

from undertow.schema import LossKind


def in_turn(
    fast: float,
    first_loss: Iterable[float],
    second_loss: Iterable[float],
    pace: float = 1e-3,
    first_pace: float = 1e-3,
    kind: float = LossKind.UNKNOWN,
) -> Training:
    run = training(*OPT007)
    for one, other in zip(first_loss, second_loss):
        scalars = {"loss": one, "lr": fast, "lr_0": fast, "loss_kind": kind}
        run.run(1, scalars=scalars, only=("first", "second"), update_ratio=first_pace, update_norm=first_pace)
        run.run(1, scalars={"loss": other, "lr": 1e-3, "lr_1": 1e-3}, only=("third", "head"), update_ratio=pace)
    return run


def test_a_discriminator_that_learns_fifty_times_as_fast_has_won() -> None:
    run = in_turn(0.05, noisy(np.geomspace(1.4, 0.05, 60)), noisy(np.geomspace(0.7, 6, 60)))
    assert run.alarms() == ["OPT007"]
    assert "50×" in run.findings()[0].summary
    assert run.findings()[0].layers == ("first.weight", "second.weight")


def test_of_two_the_one_that_hardly_moves_is_named() -> None:
    losses = noisy(np.geomspace(1.4, 0.05, 60)), noisy(np.geomspace(0.7, 6, 60))
    (finding,) = in_turn(0.05, *losses, pace=1e-6, first_pace=1e-2).findings()
    assert finding.layers == ("head.weight",)


def test_equal_rates_and_a_balanced_game_are_silent() -> None:
    assert in_turn(1e-3, noisy(np.geomspace(1.4, 0.05, 60)), noisy(np.geomspace(0.7, 6, 60))).codes() == []
    assert in_turn(0.05, noisy([1.3] * 60), noisy([0.8] * 60)).codes() == []


def test_long_steps_make_a_few_times_the_rate_too_much() -> None:
    losses = noisy(np.geomspace(1.4, 0.05, 60)), noisy(np.geomspace(0.7, 6, 60))
    assert in_turn(5e-3, *losses, first_pace=0.2).alarms() == ["OPT007"]
    assert in_turn(5e-3, *losses, first_pace=0.02).codes() == []


def test_where_nothing_is_left_of_one_loss_and_the_other_rose_rates_do_not_matter() -> None:
    gone, risen, fallen = np.geomspace(1.4, 1e-3, 60), -np.geomspace(0.5, 1e-3, 60), np.geomspace(0.7, 0.01, 60)
    assert in_turn(1e-3, noisy(gone), risen).alarms() == ["OPT007"]
    assert in_turn(1e-3, noisy(gone), noisy(fallen)).codes() == []
    assert in_turn(1e-3, noisy(gone), risen, kind=LossKind.MEAN_SQUARE).codes() == []


def test_the_one_farther_from_usual_steps_is_named_and_given_the_rate_of_the_other() -> None:
    losses = [*noisy(np.geomspace(1.4, 0.05, 60))], [*noisy(np.geomspace(0.7, 6, 60))]
    (slow,) = in_turn(0.05, *losses, pace=1e-4, first_pace=0.01).findings()
    assert slow.layers == ("head.weight",)
    assert (slow.evidence[0].value, slow.evidence[0].expected) == (1e-3, 0.05)
    (fast,) = in_turn(0.05, *losses, pace=1e-4, first_pace=0.5).findings()
    assert fast.layers[0] == "first.weight"
