"""DST: frames of a training in several processes, and of replicas in one."""

from __future__ import annotations

import numpy as np
import pytest
from tests.detect.building import Training
from tests.detect.stacks import stack

from undertow.detect.rules.diverging_ranks import DivergingRanks
from undertow.schema.severity import Severity

TOGETHER = {"rank_weight_distance": 0.0, "rank_gradient_distance": 0.0, "rank_farthest": 1.0}
STREAMS = ("gradient", "weight", "update", "rank")


def test_replicas_that_stay_equal_are_fine() -> None:
    training = Training().run(20, streams=STREAMS, scalars={"ranks": 4.0}, **TOGETHER)
    assert not [code for code in training.codes() if code.startswith("DST")]


def test_one_parameter_that_is_not_averaged_is_named_with_its_rank() -> None:
    training = Training().run(3, streams=STREAMS, **TOGETHER)
    for distance in (1e-4, 2e-4, 3e-4, 4e-4):
        parted = {"rank_weight_distance": {"second.weight": distance}, "rank_farthest": {"second.weight": 3.0}}
        training.run(1, streams=STREAMS, **{**TOGETHER, "rank_weight_distance": 0.0, **parted})
    (finding,) = [one for one in training.findings() if one.code == "DST001"]
    assert (finding.first_step, finding.detected_step) == (3, 5)
    assert tuple(finding.layers) == ("second.weight",)
    assert finding.severity is Severity.SEVERE
    assert "rank 3" in finding.summary


def test_models_that_part_everywhere_name_no_layer() -> None:
    training = Training().run(5, streams=STREAMS, **{**TOGETHER, "rank_weight_distance": 0.01})
    (finding,) = [one for one in training.findings() if one.code == "DST001"]
    assert tuple(finding.layers) == ()
    assert "8 of 8 parameters" in finding.summary


def test_rounding_is_no_divergence_and_a_repaired_one_ends() -> None:
    training = Training().run(10, streams=STREAMS, **{**TOGETHER, "rank_weight_distance": 1e-7})
    assert "DST001" not in training.codes()
    training.run(5, streams=STREAMS, **{**TOGETHER, "rank_weight_distance": 1e-3})
    training.run(2, streams=STREAMS, **TOGETHER)
    (finding,) = [one for one in training.findings() if one.code == "DST001"]
    assert not finding.ongoing


def test_frames_of_a_single_process_say_nothing_about_ranks() -> None:
    assert not [code for code in Training().run(10).codes() if code.startswith("DST")]


def test_the_rank_that_alone_is_not_finite_is_named() -> None:
    training = Training().run(3, scalars={"ranks": 8.0})
    training.run(1, scalars={"ranks": 8.0, "loss": np.nan, "rank_nonfinite": 5.0, "ranks_nonfinite": 1.0})
    training.run(2, scalars={"ranks": 8.0})
    (finding,) = [one for one in training.findings() if one.code == "DST002"]
    assert (finding.first_step, finding.severity, finding.ongoing) == (3, Severity.CRITICAL, False)
    assert "Rank 5" in finding.summary
    assert not finding.layers


def test_a_step_that_the_scaler_skips_blames_no_rank() -> None:
    bad = {"ranks": 8.0, "rank_nonfinite": 5.0, "ranks_nonfinite": 1.0, "step_skipped": 1.0}
    assert "DST002" not in Training().run(3, scalars=bad).codes()


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


@pytest.mark.parametrize(("other", "found"), [(1.0, False), (1.5, True)])
def test_replicas_in_one_process_that_keep_averages_of_their_own(other: float, found: bool) -> None:
    parts = ("one.a:Linear", "one.norm:BatchNorm1d", "two.a:Linear", "two.norm:BatchNorm1d")
    training = stack(DivergingRanks(), *parts)
    for _ in range(6):
        training.run(1, norm_average={"one.norm": 1.0, "two.norm": other}, weight_mean=0.01)
    assert [finding.layers for finding in training.findings()] == ([("one.norm", "two.norm")] if found else [])
