"""DST001 on frames of a training in several processes."""

from __future__ import annotations

import pytest
from tests.detect.building import Training

from undertow.schema import Severity

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


def test_the_layer_that_differs_most_is_the_one_that_is_shown() -> None:
    parted = {"second.weight": 1e-4, "third.bias": 5e-4, "head.weight": 2e-4}
    farthest = {"second.weight": 1.0, "third.bias": 3.0, "head.weight": 2.0}
    training = Training().run(
        5, streams=STREAMS, rank_weight_distance={**dict.fromkeys(("first", "second", "third", "head"), 0.0), **parted},
        rank_gradient_distance=0.0, rank_farthest=farthest,
    )  # fmt: skip
    (finding,) = [one for one in training.findings() if one.code == "DST001"]
    assert set(finding.layers) == set(parted)
    shown = finding.evidence[0]
    assert (shown.layer, shown.value) == ("third.bias", pytest.approx(5e-4))
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
