"""GRD003, GRD004, GRD007."""

from __future__ import annotations

import math

import pytest
from tests.detect.building import Training

from undertow.schema.layers import LayerTable
from undertow.schema.severity import Severity

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


def test_a_module_that_never_runs_is_only_noted() -> None:
    training = cut(Training(), 60, {"head": NONE}, activation_calls={"head": 0.0})
    assert training.alarms() == []
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("GRD003", Severity.INFO)


def test_a_bias_alone_is_not_cut_off() -> None:
    training = cut(Training(), 60, {"head.bias": NONE})
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD003", Severity.INFO, ("head.bias",))


def test_heads_used_in_some_steps_are_silent() -> None:
    training = Training("trunk", "left", "right")
    for step in range(200):
        cut(training, 1, {"left" if step % 7 else "right": NONE})
    assert training.findings() == []


def test_a_head_that_has_not_had_its_turn_yet_is_silent() -> None:
    training = cut(Training("trunk", "left", "right"), 15, {"right": NONE})
    training.run(20)
    assert training.findings() == []


def test_a_head_beside_others_may_join_the_loss_late() -> None:
    training = Training("trunk", "left", "right")
    shapes = {"trunk.weight": (32, 8), "left.weight": (4, 32), "right.weight": (3, 32)}
    training.layers = LayerTable.of(
        [layer.replace(shape=shapes[layer.path]) if layer.path in shapes else layer for layer in training.layers]
    )
    training.engine.set_layers(training.layers, training.graph)
    cut(training, 99, {"left": NONE})
    assert training.alarms() == []
    assert cut(training, 5, {"left": NONE}).alarms() == ["GRD003"]


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


def test_zero_gradient_of_a_dead_relu_is_placed_at_the_relu() -> None:
    # The bias of `second` keeps its ReLU off: zeros arrive at `third`, whose bias alone still learns.
    zero = {"first": 1.0, "second": 1.0, "third.weight": 1.0}
    silent = {"second_relu": 1.0}
    training = Training().run(9, gradient_zero_fraction=zero, activation_zero_fraction=silent)
    assert training.findings() == []
    training.run(3, gradient_zero_fraction=zero, activation_zero_fraction=silent)
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("GRD004", Severity.SEVERE)
    assert finding.layers[:2] == ("second.weight", "second.bias")
    assert set(finding.layers) == {"first.weight", "first.bias", "second.weight", "second.bias", "third.weight"}
    assert (finding.first_step, finding.detected_step) == (0, 9)
    assert any(evidence.layer == "second_relu" for evidence in finding.evidence)


def test_zero_gradient_without_activations_looks_before_the_zero_input() -> None:
    zero = {"first": 1.0, "second": 1.0, "third.weight": 1.0}
    training = Training().run(10, gradient_zero_fraction=zero, streams=("gradient",))
    assert training.findings()[0].layers[0] == "second.weight"


def test_one_layer_erased_by_a_hook() -> None:
    training = Training().run(10, gradient_zero_fraction={"third.weight": 1.0})
    assert training.findings()[0].layers == ("third.weight",)


def test_everything_zero_takes_longer_but_is_seen() -> None:
    training = Training().run(19, gradient_zero_fraction=1.0)
    assert training.findings() == []
    assert training.run(1, gradient_zero_fraction=1.0).alarms() == ["GRD004"]


@pytest.mark.parametrize(
    "healthy",
    [
        {"gradient_zero_fraction": {"third.bias": 1.0}},  # the key bias of attention
        {"gradient_zero_fraction": {"third": 1.0}, "scalars": {"loss": 0.0}},  # nothing left to learn
        {"gradient_zero_fraction": {"third": 1.0}, "activation_calls": {"third": 0.0}},  # an expert without tokens
        {"gradient_zero_fraction": {"third": 0.999}},  # a sparse embedding
    ],
)
def test_healthy_zeros_raise_no_alarm(healthy: dict[str, object]) -> None:
    assert Training().run(60, **healthy).alarms() == []


def test_zero_initialised_branches_are_silent() -> None:
    training = Training().run(3, gradient_zero_fraction={"second": 1.0}).run(50)
    assert training.findings() == []


def carry(training: Training, steps: int, carried: object = 1.0, **changes: object) -> Training:
    """Steps that add to the gradients of those before."""
    for _ in range(steps):
        norm = 0.1 * (1 + training.step)
        training.run(1, gradient_carried=carried, gradient_norm=norm, stepped_gradient_norm=norm, **changes)
    return training


def test_uncleared_gradients_blame_the_loop() -> None:
    training = carry(Training().run(1), 2)
    assert training.findings() == []
    carry(training, 4)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD007", Severity.SEVERE, ())
    assert (finding.first_step, finding.detected_step, finding.last_step) == (1, 3, 6)


def test_uncleared_gradients_of_some_layers_name_them() -> None:
    training = carry(Training(), 5, {"third": 1.0})
    assert training.findings()[0].layers == ("third.weight", "third.bias")


def test_a_gradient_carried_now_and_then_is_silent() -> None:
    training = Training()
    for _ in range(30):
        carry(training, 2).run(1)
    assert training.findings() == []


def test_gradients_that_stay_the_same_are_left_behind_not_carried() -> None:
    """The model has got new parameters; the optimizer's own keep the gradient they had last."""
    training = Training().run(1).run(10, gradient_carried=1.0)
    assert training.codes() == ["UPD003"]
    assert training.findings()[0].first_step == 1


def test_carried_gradients_in_no_optimizer_are_left_to_the_other_rule() -> None:
    training = Training().run(10, gradient_carried={"third": 1.0}, gradient_optimizer={"third": -1.0})
    assert training.codes() == ["UPD003"]


def test_cut_layers_that_no_graph_has_placed_are_found_as_fast() -> None:
    from undertow.schema.layers import LayerTable

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


def test_one_optimizer_of_two_that_is_not_cleared() -> None:
    training = Training()
    for _ in range(6):
        carry(training.run(1, only=("first", "second")), 1, only=("third", "head"))
    assert set(training.findings()[0].layers) == {"third.weight", "third.bias", "head.weight", "head.bias"}


def test_a_block_skipped_at_random_is_silent_between_two_looks_at_the_modules() -> None:
    training = Training().run(2)
    training.run(15, gradient_zero_fraction={"second": 1.0}, streams=("gradient", "update"))
    training.run(1, gradient_zero_fraction={"second": 1.0}, activation_calls={"second": 0.0})
    training.run(60, gradient_zero_fraction={"second": 1.0}, streams=("gradient", "update"))
    assert training.findings() == []
    # Seen running with a zero gradient, it is no longer an excuse.
    training.run(1, gradient_zero_fraction={"second": 1.0})
    assert training.alarms() == ["GRD004"]


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
