"""GRD003: the graph is cut."""

from __future__ import annotations

import math

import pytest
from tests.detect.building import Training

from undertow.schema import LayerTable, Severity

NONE = 1.0
UPSTREAM = {"first": NONE, "second": NONE}


def cut(training: Training, steps: int, groups: dict[str, float] = UPSTREAM, **more: object) -> Training:
    nothing = dict.fromkeys(groups, math.nan)
    return training.run(
        steps, gradient_state=groups, gradient_norm=nothing, gradient_zero_fraction=nothing,
        gradient_nonfinite_count=nothing, update_norm=dict.fromkeys(groups, 0.0), **more,
    )  # fmt: skip


def test_cut_graph_is_named_with_the_place_of_the_cut() -> None:
    training = cut(Training(), 4)
    assert training.findings() == []
    cut(training, 6)
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("GRD003", Severity.SEVERE)
    assert finding.layers == ("second.bias", "second.weight", "first.bias", "first.weight")
    assert (finding.first_step, finding.detected_step, finding.last_step) == (0, 4, 9)
    assert finding.evidence[0].layer == "third.weight"
    assert "second.bias" in finding.evidence[0].how
    assert finding.summary.endswith("the graph is cut before third.weight.")


def test_cut_graph_is_seen_without_activations() -> None:
    assert cut(Training(), 5, streams=("gradient", "update")).alarms() == ["GRD003"]


def test_heads_used_in_some_steps_are_silent() -> None:
    training = Training("trunk", "left", "right")
    for step in range(200):
        cut(training, 1, {"left" if step % 7 else "right": NONE})
    assert training.findings() == []


def test_a_head_that_has_not_had_its_turn_yet_is_silent() -> None:
    training = cut(Training("trunk", "left", "right"), 15, {"right": NONE})
    training.run(20)
    assert training.findings() == []


@pytest.mark.parametrize(
    ("silent", "streams"), [(19, ("gradient", "activation", "update")), (99, ("gradient", "update"))]
)
def test_a_head_beside_others_may_join_the_loss_late_unless_it_runs(silent: int, streams: tuple[str, ...]) -> None:
    training = Training("trunk", "left", "right")
    shapes = {"trunk.weight": (32, 8), "left.weight": (4, 32), "right.weight": (3, 32)}
    training.layers = LayerTable.of(
        [layer.replace(shape=shapes[layer.path]) if layer.path in shapes else layer for layer in training.layers]
    )
    training.engine.set_layers(training.layers, training.graph)
    cut(training, silent, {"left": NONE}, streams=streams)
    assert training.alarms() == []
    assert cut(training, 5, {"left": NONE}, streams=streams).alarms() == ["GRD003"]


def test_a_graph_cut_later_is_seen_after_fifty_steps() -> None:
    training = cut(Training().run(20), 49)
    assert training.findings() == []
    cut(training, 1)
    (finding,) = training.findings()
    assert (finding.code, finding.first_step, finding.detected_step) == ("GRD003", 20, 69)
    training.run(1)
    assert not training.findings()[0].ongoing


def test_one_look_at_what_runs_is_enough_later() -> None:
    training = Training().run(20)
    gone = {"gradient_state": {"head": 1.0}, "gradient_norm": {"head": math.nan}}
    for step in range(60):
        streams = ("gradient", "update", "activation") if step == 5 else ("gradient", "update")
        training.run(1, streams=streams, **gone)
    assert [finding.layers for finding in training.findings()] == [("head.bias", "head.weight")]


def test_a_module_that_runs_in_other_steps_than_those_without_a_gradient_is_not_cut_off() -> None:
    training = Training().run(20)
    gone = {"gradient_state": {"head": 1.0}, "gradient_norm": {"head": math.nan}}
    for step in range(80):
        training.run(1, streams=("activation",) if step % 9 == 5 else ("gradient", "update"), **gone)
    assert training.findings() == []


def test_parameters_in_no_optimizer_are_not_its_business() -> None:
    assert cut(Training(), 60, gradient_optimizer={"first": -1.0, "second": -1.0}).alarms() == []


def test_cut_layers_that_no_graph_has_placed_are_found_as_fast() -> None:
    training = Training()
    unplaced = [
        layer.replace(order=None) if layer.startswith(("first", "second")) else layer for layer in training.layers
    ]
    training.layers = LayerTable(tuple(unplaced))
    training.engine.set_layers(training.layers, training.graph)
    cut(training, 5)
    (finding,) = training.findings()
    assert finding.layers == ("second.bias", "second.weight", "first.bias", "first.weight")
    assert finding.evidence[0].layer == "third.weight"


def test_a_head_whose_turn_is_over_is_silent() -> None:
    training = cut(Training("trunk", "left", "right").run(5), 100, {"right": NONE}, streams=("gradient", "update"))
    assert training.findings() == []


@pytest.mark.parametrize(("runs", "found"), [(1.0, ["GRD003"]), (0.0, [])])
def test_a_generator_that_is_cut_off_from_its_adversary(runs: float, found: list[str]) -> None:
    """It runs at the adversary's step; at its own, only the adversary does."""
    training = Training("one", "two", "judge")
    own = {"one": 0.0, "one_relu": 0.0, "two": 0.0, "two_relu": 0.0}
    cut = {f"{name}.{part}": 1.0 for name in ("one", "two") for part in ("weight", "bias")}
    nowhere = {path: float("nan") for path in cut}
    for _ in range(60):
        training.run(1, gradient_optimizer=nowhere, gradient_state=nowhere, activation_calls=dict.fromkeys(own, runs))
        training.run(1, gradient_state=cut, activation_calls=own, streams=("gradient", "activation"))
    assert [
        finding.code for finding in training.findings() if finding.code == "GRD003" and finding.severity.is_alarm
    ] == found


@pytest.mark.parametrize(("calls", "severity"), [(1.0, Severity.INFO), (2.0, Severity.SEVERE)])
def test_a_head_that_runs_only_in_a_pass_without_gradients(calls: float, severity: Severity) -> None:
    """Less often than the others it runs for a look at it; as often as they do it has been cut off."""
    training = Training()
    modules = [layer.path for layer in training.layers.modules]
    often = {**dict.fromkeys(modules, 2.0), "head": calls}
    mode = {**dict.fromkeys(modules, 1.0), "head": math.nan}
    cut(training, 40, {"head": NONE}, activation_calls=often, activation_training=mode)
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("GRD003", severity)


def test_where_all_gradients_go_to_another_model_no_graph_is_cut() -> None:
    outside = {"third": -1.0, "head": -1.0}
    training = cut(Training(), 20, gradient_optimizer=outside)
    (finding,) = [one for one in training.findings() if one.severity.is_alarm]
    assert (finding.code, finding.severity) == ("UPD003", Severity.SEVERE)
    assert "another model" in finding.summary
