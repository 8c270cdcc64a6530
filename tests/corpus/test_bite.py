"""Every fault does harm: over three seeds more than seeds alone do to the healthy twin, and more than two points."""

import math

import pytest

from corpus.examination import harm
from corpus.registry import sick_cases
from undertow.demos.case import Case

# One quick training of each family.
SAMPLE = (
    "batch_norm_of_pairs",
    "broadcast_square_error",
    "clipped_before_unscaling",
    "dead_relu",
    "deep_sigmoid",
    "flipped_bit",
    "frozen_by_mistake",
    "masked_gradient",
    "missing_zero_grad",
    "rate_too_high",
    "raw_inputs",
    "router_collapse",
    "softmax_before_cross_entropy",
    "weight_decay_wins",
    "weights_too_small",
)


def _expect_harm(training: Case) -> None:
    sick = [training.run(seed=seed)[training.bites] for seed in range(3)]
    twin = [training.run(seed=seed, fault_on=False)[training.bites] for seed in range(3)]
    assert all(math.isfinite(value) for value in [*sick, *twin])
    done, needed = harm(sick, twin)
    assert done > needed, f"{training.bites}: sick {sick}, twin {twin}"


@pytest.mark.parametrize("name", SAMPLE)
def test_the_fault_bites(name: str) -> None:
    _expect_harm(sick_cases("development")[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [variant for training in sick_cases("development").values() for variant in training.variants()],
    ids=lambda training: f"{training.name}-{training.severity}-{training.onset}",
)
def test_the_fault_bites_at_every_severity_and_onset(training: Case) -> None:
    _expect_harm(training)
