"""DST001 on frames of replicas in one process."""

from __future__ import annotations

import pytest
from tests.detect.building import Training
from tests.detect.stacks import stack

from undertow.detect.rules.distributed.diverging_replicas import DivergingReplicas

REPLICAS = ("one.first", "one.second", "two.first", "two.second")


def _step(training: Training, apart: dict[str, float]) -> None:
    """Both models step with the same gradients; weights differ where `apart` says so."""
    norms = {f"{name}.{part}": 0.1 for name in REPLICAS for part in ("weight", "bias")}
    weights = {path: 1.0 + apart.get(path, 0.0) for path in norms}
    gradients = {path: 0.1 + apart.get(path, 0.0) for path in norms}
    training.run(1, stepped_gradient_norm=gradients, weight_norm=weights, weight_mean=0.01)


def test_replicas_in_one_process_part_in_one_layer() -> None:
    training = Training(*REPLICAS)
    for step in range(6):
        _step(training, {"two.second.weight": 0.01 * (step + 1)})
    (finding,) = [one for one in training.findings() if one.code == "DST001"]
    assert set(finding.layers) == {"one.second.weight", "two.second.weight"}


def test_models_alike_with_gradients_of_their_own_are_no_replicas() -> None:
    training = Training(*REPLICAS)
    for step in range(6):
        own = (f"two.{name}.{part}" for name in ("first", "second") for part in ("weight", "bias"))
        _step(training, dict.fromkeys(own, 0.01 * (step + 1)))
    assert "DST001" not in training.codes()


def test_replicas_in_one_process_that_stay_equal_are_fine() -> None:
    training = Training(*REPLICAS)
    for _ in range(6):
        _step(training, {})
    assert "DST001" not in training.codes()


def test_replicas_in_one_process_that_were_equal_once_may_not_part_later() -> None:
    training = Training(*REPLICAS)
    for step in range(12):
        own = (f"two.{name}.{part}" for name in ("first", "second") for part in ("weight", "bias"))
        _step(training, dict.fromkeys(own, 0.01 * step if step > 5 else 0.0))
    (finding,) = [one for one in training.findings() if one.code == "DST001"]
    assert (finding.first_step, len(finding.layers)) == (6, 8)


def test_replicas_of_one_list_with_the_same_gradients_and_other_weights() -> None:
    names = ("all.0.first", "all.0.second", "all.1.first", "all.1.second")
    training = Training(*names)
    for _ in range(6):
        weights = {f"{name}.{part}": 1.0 + 0.1 * ("1" in name) for name in names for part in ("weight", "bias")}
        training.run(1, weight_norm=weights, weight_mean=0.01)
    (finding,) = [one for one in training.findings() if one.code == "DST001"]
    assert len(finding.layers) == 8


def test_gradients_clipped_to_one_value_do_not_make_replicas() -> None:
    training = Training("all.0.first", "all.0.second", "all.1.first", "all.1.second")
    flat = {layer.path: 1e-6 * layer.parameter_count**0.5 for layer in training.layers.parameters}
    for _ in range(6):
        weights = {path: 1.0 + 0.1 * ("1" in path) for path in flat}
        training.run(1, stepped_gradient_norm=flat, stepped_gradient_max_abs=1e-6, weight_norm=weights)
    assert "DST001" not in training.codes()


@pytest.mark.parametrize(("other", "found"), [(1.0, False), (1.5, True)])
def test_replicas_in_one_process_that_keep_averages_of_their_own(other: float, found: bool) -> None:
    parts = ("one.a:Linear", "one.norm:BatchNorm1d", "two.a:Linear", "two.norm:BatchNorm1d")
    training = stack(DivergingReplicas, *parts)
    for _ in range(6):
        training.run(1, norm_average={"one.norm": 1.0, "two.norm": other}, weight_mean=0.01)
    assert [finding.layers for finding in training.findings()] == ([("one.norm", "two.norm")] if found else [])
