"""UPD003 missing-from-optimizer."""

from __future__ import annotations

import math

import pytest
from tests.detect.building import Training, watched_by
from tests.detect.random_weights import random_weights

from undertow.detect.rules.updates.missing_from_optimizer import MissingFromOptimizer
from undertow.schema import GraphSource, LayerGraph, Severity


def test_a_layer_in_no_optimizer() -> None:
    training = Training().run(4, gradient_optimizer={"second": -1.0})
    assert training.findings() == []
    training.run(4, gradient_optimizer={"second": -1.0})
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("UPD003", Severity.SEVERE)
    assert finding.layers == ("second.weight", "second.bias")
    assert (finding.first_step, finding.detected_step, finding.last_step) == (0, 4, 7)


def test_training_only_a_head_is_probably_meant() -> None:
    outside = {"first": -1.0, "second": -1.0, "third": -1.0}
    training = Training().run(10, gradient_optimizer=outside)
    assert training.alarms() == []
    assert training.findings()[0].severity is Severity.MILD


def test_most_of_a_model_left_out_by_an_empty_group_is_a_mistake() -> None:
    outside = {"first": -1.0, "second": -1.0, "third": -1.0}
    training = Training().run(10, scalars={"optimizer_empty_groups": 1.0}, gradient_optimizer=outside)
    (finding,) = [finding for finding in training.findings() if finding.severity.is_alarm]
    assert (finding.code, finding.layers[0]) == ("UPD003", "first.weight")
    assert "empty" in finding.summary


def test_a_teacher_without_gradients_is_silent() -> None:
    training = Training().run(
        50, gradient_optimizer={"second": -1.0}, gradient_state={"second": 1.0},
        gradient_zero_fraction={"second": math.nan},
    )  # fmt: skip
    assert training.findings() == []


@pytest.mark.parametrize(
    ("middle", "scale", "severity"),
    [(("second", "third", "fourth", "fifth"), 1.0, Severity.SEVERE),
     (("second", "third", "fourth", "fifth"), 3.0, Severity.MILD),
     (("first", "second", "third", "fourth"), 1.0, Severity.MILD)],
    ids=["new, between trained ones", "loaded from elsewhere", "all below the head"],
)  # fmt: skip
def test_most_of_a_model_left_out(middle: tuple[str, ...], scale: float, severity: Severity) -> None:
    training = Training("first", "second", "third", "fourth", "fifth", "head")
    outside = {**random_weights(), "gradient_optimizer": dict.fromkeys(middle, -1.0)}
    outside |= {"update_norm": dict.fromkeys(middle, math.nan), "weight_kurtosis": -1.2 * scale}
    outside["weight_norm"] = {f"{name}.weight": 1.6 + place / 50 for place, name in enumerate((*middle, "head"))}
    training.run(10, **outside)
    (finding,) = [finding for finding in training.findings() if finding.code == "UPD003"]
    assert finding.severity is severity


def test_an_optimizer_without_biases_and_scales_is_no_plan() -> None:
    """Many tensors, but few numbers."""
    names = ("first", "second", "third", "head")
    outside = {f"{name}.bias": -1.0 for name in names} | {"third.weight": -1.0}
    (finding,) = Training().run(6, gradient_optimizer=outside).findings()
    assert (finding.code, finding.severity) == ("UPD003", Severity.SEVERE)


def test_a_head_that_was_replaced_keeps_its_last_gradient() -> None:
    """No optimizer holds it any more, and its gradient stays what it was."""
    training = Training().run(3)
    for step in range(10):
        training.run(
            1, gradient_optimizer={"head": -1.0}, gradient_norm={"first": 0.1 + step / 100, "second": 0.2 - step / 100}
        )
    assert training.alarms() == []


def test_a_layer_that_the_program_moves_by_itself_needs_no_optimizer() -> None:
    training = Training()
    for step in range(30):
        training.run(1, gradient_optimizer={"second": -1.0}, weight_norm={"second.weight": 1 + 0.01 * step})
    (finding,) = training.findings()  # the bias stays where it is
    assert (finding.code, finding.layers) == ("UPD003", ("second.bias",))


@pytest.mark.parametrize(
    ("losses", "scale", "severity"),
    [([2.3] * 100, 1.0, Severity.SEVERE),
     ([2.3 * 0.97**step for step in range(100)], 1.0, Severity.MILD),
     ([2.3] * 100, 3.0, Severity.MILD)],
    ids=["nothing is learnt", "the head learns", "loaded from elsewhere: perhaps a slow start"],
)  # fmt: skip
def test_a_backbone_below_a_head(losses: list[float], scale: float, severity: Severity) -> None:
    backbone = ("first", "second", "third", "fourth")
    training = Training(*backbone, "head")
    outside = {**random_weights(), "gradient_optimizer": dict.fromkeys(backbone, -1.0)}
    outside |= {"update_norm": dict.fromkeys(backbone, math.nan), "weight_kurtosis": -1.2 * scale}
    for step, loss in enumerate(losses):
        training.run(1, scalars={"loss": loss + 0.01 * (step % 3)}, **outside)
    (finding,) = [finding for finding in training.findings() if finding.code == "UPD003"]
    assert finding.severity is severity


def test_a_whole_model_beside_the_trained_one_is_probably_meant() -> None:
    training = Training("student.first", "student.second", "student.head", "teacher.first", "teacher.head")
    outside = dict.fromkeys(("teacher.first", "teacher.head"), -1.0)
    training.run(20, gradient_optimizer=outside)
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("UPD003", Severity.MILD)
    assert all(layer.startswith("teacher.") for layer in finding.layers)


def test_a_weight_that_a_program_without_an_optimizer_passes_over() -> None:
    rests = {"gradient_optimizer": {"second": -1.0}, "gradient_state": {"second": 1.0},
             "gradient_norm": {"second": math.nan}, "gradient_zero_fraction": {"second": math.nan}}  # fmt: skip
    by_hand = watched_by(MissingFromOptimizer)
    by_hand.run(30, scalars={"lr": math.nan}, update_norm={"second": 0.0}, **rests)
    (finding,) = by_hand.findings()
    assert (finding.severity, finding.layers) == (Severity.MODERATE, ("second.weight", "second.bias"))
    assert (finding.first_step, finding.detected_step) == (0, 19)
    moved = watched_by(MissingFromOptimizer).run(30, scalars={"lr": math.nan}, **rests)
    with_optimizer = watched_by(MissingFromOptimizer).run(30, update_norm={"second": 0.0}, **rests)
    assert (moved.codes(), with_optimizer.codes()) == ([], [])


@pytest.mark.parametrize(
    ("edges", "kurtosis", "severity"),
    [((), -1.2, Severity.MODERATE), ((), 1.0, Severity.MILD), (((0, 2),), -1.2, Severity.MILD)],
    ids=["a critic", "a teacher", "it feeds what is trained"],
)
def test_a_new_model_beside_that_only_a_loss_of_its_own_uses(
    edges: tuple[tuple[int, int], ...], kurtosis: float, severity: Severity
) -> None:
    training = watched_by(MissingFromOptimizer, names=("critic.0", "critic.2", "actor.0", "actor.2"))
    nodes = training.graph.nodes
    training.graph = LayerGraph(nodes, ((0, 1), (2, 3), *edges), GraphSource.AUTOGRAD)
    training.engine.set_layers(training.layers, training.graph)
    outside = {"critic.0": -1.0, "critic.2": -1.0}
    unheld = {"gradient_optimizer": outside, "update_norm": dict.fromkeys(outside, math.nan)}
    training.run(10, **{**random_weights(), **unheld, "weight_kurtosis": kurtosis, "weight_norm": 1.6})
    (finding,) = training.findings()
    assert (finding.severity, finding.layers[0]) == (severity, "critic.0.weight")
