"""The programs themselves: they are distinct, they repeat, and each fault does harm."""

import math
import statistics

import pytest

from undertow.faults.training import hospital, zoo
from undertow.schema.codes import CODES

# Silent faults: the accuracy hardly suffers, so the harm is shown by what they do.
INVARIANTS = {"NUM001", "NUM002", "NUM003", "GRD003", "GRD004", "GRD007", "UPD003", "UPD004"}


def test_every_invariant_has_a_sick_training() -> None:
    assert {training.code for training in hospital().values()} == INVARIANTS
    assert set(CODES) > INVARIANTS


def test_the_zoo_is_large_enough_to_mean_something() -> None:
    assert len(zoo()) >= 16


@pytest.mark.parametrize("name", sorted(hospital()))
def test_the_fault_bites(name: str) -> None:
    """Over three seeds the harm exceeds what seeds alone do to the healthy twin, and two points."""
    training = hospital()[name]
    sick = [training.run(seed=seed)[training.bites] for seed in range(3)]
    twin = [training.run(seed=seed, fault_on=False)[training.bites] for seed in range(3)]
    assert all(math.isfinite(value) for value in [*sick, *twin])
    harm = abs(statistics.mean(sick) - statistics.mean(twin))
    assert harm > max(3 * statistics.stdev(twin), 0.02), f"{training.bites}: sick {sick}, twin {twin}"


def test_the_same_seed_gives_the_same_training() -> None:
    training = hospital()["forgotten_detach"]
    assert training.run(steps=5, seed=3) == training.run(steps=5, seed=3)
    assert training.run(steps=5, seed=3) != training.run(steps=5, seed=4)


@pytest.mark.parametrize("name", sorted(zoo()))
def test_healthy_trainings_end_with_a_finite_loss(name: str) -> None:
    metrics = zoo()[name].run(steps=12)
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_truth_covers_everything_below_it() -> None:
    training = hospital()["layer_left_out"]
    assert training.accepts("middle")
    assert training.accepts("middle.weight")
    assert not training.accepts("middles.weight")
    assert not training.accepts("head.weight")
