"""UPD003, UPD004."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.detect.building import Training
from tests.detect.stacks import stack

from undertow.detect.engine import Engine
from undertow.detect.rules.never_updated import NeverUpdated
from undertow.schema.layers import Layer, LayerKind, LayerTable
from undertow.schema.quantities import GradientState
from undertow.schema.severity import Severity


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


def test_a_weight_that_the_optimizer_does_not_move() -> None:
    training = Training().run(4, update_norm={"third.weight": 0.0})
    assert training.findings() == []
    training.run(2, update_norm={"third.weight": 0.0})
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("UPD003", Severity.SEVERE, ("third.weight",))
    training.run(1)
    assert not training.findings()[0].ongoing


@pytest.mark.parametrize(
    "healthy",
    [
        {"scalars": {"lr": 0.0}, "update_norm": 0.0},
        {"scalars": {"step_skipped": 1.0}, "update_norm": {"third": 0.0}},
        {"update_norm": 0.0},  # nothing moves at all: an optimizer that accumulates by itself
        {"update_norm": {"third": 0.0}, "stepped_gradient_max_abs": {"third": 0.0}},
        {"update_norm": {"third": 0.0}, "stepped_gradient_max_abs": {"third": 1e-9}},  # rounds away in float32
        {"update_norm": {"third": math.nan}},
    ],
)
def test_standing_still_for_a_reason_raises_no_alarm(healthy: dict[str, object]) -> None:
    training = Training().run(9, **healthy)
    assert [code for code in training.alarms() if code != "NUM001"] == []


def test_updates_that_round_away_in_low_precision_say_so() -> None:
    training = Training(dtype="torch.bfloat16").run(49, update_norm={"third": 0.0})
    assert training.findings() == []
    training.run(1, update_norm={"third": 0.0})
    (finding,) = training.findings()
    assert finding.layers == ("third.weight",)
    assert finding.severity is Severity.MODERATE
    assert "bfloat16" in finding.summary


def test_a_group_with_a_rate_of_zero_is_named_as_the_reason() -> None:
    training = Training().run(9, update_norm={"third": 0.0}, scalars={"lr_0": 0.1, "lr_1": 0.0})
    (finding,) = training.findings()
    assert finding.severity is Severity.MILD
    assert "learning rate of zero" in finding.summary


def test_frozen_layers_are_one_remark_that_follows_the_model() -> None:
    frozen = {"first": 2.0, "second": 2.0}
    training = Training().run(3).run(5, gradient_state=frozen, gradient_optimizer=1.0)
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("UPD004", Severity.INFO)
    assert finding.layers == ("first.weight", "first.bias", "second.weight", "second.bias")
    assert (finding.first_step, finding.detected_step, finding.last_step) == (3, 3, 7)
    training.run(1, gradient_state={"first": 2.0})
    assert training.findings()[0].layers == ("first.weight", "first.bias")
    training.run(1)
    assert not training.findings()[0].ongoing


def random_weights(*frozen: str, bound: float = 8**-0.5) -> dict[str, object]:
    """All weights as PyTorch makes them for 8 inputs; those of the frozen modules are never moved."""
    return {
        "gradient_state": dict.fromkeys(frozen, 2.0),
        "update_norm": dict.fromkeys(frozen, math.nan),
        "weight_max_abs": 0.99 * bound,
        "weight_mean": 0.0,
        "weight_std": bound / math.sqrt(3),
        "weight_kurtosis": -1.2,
        "weight_norm": {"first.weight": 1.63, "second.weight": 1.61, "third.weight": 1.66, "head.weight": 1.64},
    }


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


def test_a_frozen_layer_that_was_never_trained() -> None:
    training = Training()
    training.run(30, **random_weights("second"))
    assert training.alarms() == []
    training.run(2, **random_weights("second"))
    (finding,) = [finding for finding in training.findings() if finding.code == "UPD003"]
    assert (finding.severity, finding.layers) == (Severity.MODERATE, ("second.weight", "second.bias"))
    assert (finding.first_step, finding.detected_step) == (0, 30)
    training.run(1, **random_weights())
    (finding,) = [finding for finding in training.findings() if finding.code == "UPD003"]
    assert not finding.ongoing


@pytest.mark.parametrize(("resting", "found"), [("layer2", True), ("teacher", False)])
def test_a_whole_part_that_rests_is_meant_unless_it_is_one_of_a_series(resting: str, found: bool) -> None:
    names = ("layer1.a", "layer1.b", f"{resting}.a", f"{resting}.b", "layer3.a", "layer3.b", "head")
    frozen = random_weights(f"{resting}.a", f"{resting}.b")
    frozen["weight_norm"] = {f"{name}.weight": 1.6 + place / 50 for place, name in enumerate(names)}
    assert ("UPD003" in Training(*names).run(40, **frozen).alarms()) is found


@pytest.mark.parametrize(
    ("at_rest", "severity"), [(("head",), Severity.MODERATE), (("first", "second"), Severity.MILD)]
)
def test_a_group_with_a_rate_of_zero_that_was_never_trained(at_rest: tuple[str, ...], severity: Severity) -> None:
    resting = {**random_weights(), "update_norm": dict.fromkeys(at_rest, 0.0)}
    training = Training().run(9, scalars={"lr_0": 0.1, "lr_1": 0.0}, **resting)
    (finding,) = [finding for finding in training.findings() if finding.code == "UPD003"]
    assert finding.severity is severity


@pytest.mark.parametrize(
    "frozen",
    [
        {**random_weights("first"), "weight_max_abs": 0.5},  # pretrained: weights beyond the bound
        {**random_weights("first"), "weight_kurtosis": 0.0},  # drawn in another way
        {**random_weights("first"), "weight_std": 0.1},
        random_weights("first", "second"),  # as many as are trained
        {**random_weights("first"), "weight_norm": 1.0},  # a copy of a trained layer
        {**random_weights("first"), "update_norm": 0.0},  # nothing trains
    ],
)
def test_frozen_for_a_reason_raises_no_alarm(frozen: dict[str, object]) -> None:
    assert "UPD003" not in Training().run(9, **frozen).alarms()


@pytest.mark.parametrize(
    ("blocks", "scale", "codes"),
    [(3, 1.0, ["UPD003"]), (3, 0.97, []), (1, 1.0, [])],  # nobody loaded it; trained before; a layer of random features
)
def test_a_frozen_backbone_that_nobody_has_loaded(blocks: int, scale: float, codes: list[str]) -> None:
    names = [name for i in range(blocks) for name in (f"body.{2 * i}:Conv2d", f"body.{2 * i + 1}:BatchNorm2d")]
    frozen = tuple(name.partition(":")[0] for name in names)
    norms = {f"body.{2 * i + 1}.weight": scale for i in range(blocks)}
    training = stack(NeverUpdated(), *names, "head:Linear", frozen=frozen)
    rest, still = dict.fromkeys(frozen, float(GradientState.FROZEN)), dict.fromkeys(frozen, 0.0)
    training.run(
        40, gradient_state=rest, update_norm=still, update_ratio=still,
        weight_max_abs=norms, weight_mean=norms, weight_std=dict.fromkeys(norms, 0.0),
    )  # fmt: skip
    assert training.alarms() == codes


def test_layers_released_one_after_the_other_are_frozen_by_plan() -> None:
    training = Training().run(3, **random_weights("first", "second"))
    assert "UPD003" not in training.run(12, **random_weights("first")).alarms()


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({}, {}, True),
        ({}, {"scalars": {"lr": 1e-4}}, False),
        ({}, {"gradient_optimizer": {"first": -1.0}}, False),
        ({}, {"gradient_optimizer": 1.0}, False),
        ({"gradient_state": {"second": 2.0}}, {}, False),
    ],
    ids=["nothing else changes", "another rate", "an optimizer for the rest", "a new optimizer", "others are released"],
)
def test_layers_frozen_while_training(before: dict[str, Any], after: dict[str, Any], found: bool) -> None:
    usual: dict[str, Any] = {"scalars": {"lr": 0.01}, "weight_kurtosis": 0.5}
    training = Training().run(3, **usual | before)
    training.run(45, **usual | {"gradient_state": {"first": 2.0}, "update_norm": {"first": math.nan}} | after)
    assert ("UPD003" in training.alarms()) is found
    if found:
        (finding,) = [one for one in training.findings() if one.code == "UPD003"]
        assert (finding.first_step, finding.layers) == (3, ("first.weight", "first.bias"))


def test_a_new_layer_that_waits_for_its_turn_is_silent() -> None:
    training = Training().run(20, **random_weights("second"))
    assert "UPD003" not in training.run(20, **random_weights()).codes()


def test_layers_frozen_one_after_the_other_are_frozen_by_plan() -> None:
    training = Training().run(20)
    for frozen in (("first",), ("first", "second")):
        resting = dict.fromkeys(frozen, 2.0)
        training.run(30, gradient_state=resting, update_norm=dict.fromkeys(frozen, math.nan))
    assert "UPD003" not in training.alarms()


@pytest.mark.parametrize(("left", "found"), [(0.05, False), (0.8, True)])
def test_layers_frozen_when_nearly_all_is_learnt_are_a_remark(left: float, found: bool) -> None:
    training = Training().run(20)
    for step in range(60):
        frozen = {"gradient_state": {"first": 2.0}, "update_norm": {"first": math.nan}} if step > 12 else {}
        training.run(1, scalars={"loss": left}, **frozen)
    assert ("UPD003" in training.alarms()) is found


def test_layers_that_are_frozen_and_released_again() -> None:
    training = Training().run(3).run(2, gradient_state={"first": 2.0}).run(9)
    assert "UPD003" not in training.run(9, gradient_state={"first": 2.0}).alarms()


def test_layers_that_no_model_holds() -> None:
    training = Training().run(4, scalars={"unregistered_parameters": 6.0})
    assert training.alarms() == []
    (finding,) = training.run(1, scalars={"unregistered_parameters": 6.0}).findings()
    assert (finding.code, finding.layers, finding.severity) == ("UPD003", (), Severity.SEVERE)
    assert training.run(5).findings()[0].ongoing  # it is looked for in the first steps only


def test_no_weight_has_ever_moved() -> None:
    training = Training().run(9, update_norm=0.0)
    assert training.alarms() == []
    (finding,) = [one for one in training.run(1, update_norm=0.0).findings() if one.severity.is_alarm]
    assert (finding.code, finding.layers, finding.severity) == ("UPD003", (), Severity.CRITICAL)
    assert "zero_grad" in finding.summary
    (finding,) = [one for one in training.run(1).findings() if one.severity.is_alarm]
    assert not finding.ongoing


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


def test_an_optimizer_whose_parameters_get_no_gradient_any_more() -> None:
    nothing = {"gradient_state": float(GradientState.NONE), "update_norm": 0.0, "gradient_zero_fraction": math.nan}
    training = Training().run(10).run(4, **nothing)
    assert "UPD003" not in training.alarms()
    (finding,) = [one for one in training.run(1, **nothing).findings() if one.code == "UPD003"]
    assert (finding.severity, finding.first_step, finding.layers) == (Severity.CRITICAL, 10, ())
    (finding,) = [one for one in training.run(1).findings() if one.code == "UPD003"]
    assert not finding.ongoing


def test_new_weights_that_rest_for_long_with_a_rate_of_zero() -> None:
    resting = {**random_weights(), "update_norm": {"first": 0.0, "second": 0.0}}
    training = Training().run(110, scalars={"lr_0": 0.1, "lr_1": 0.0}, **resting)
    (finding,) = [finding for finding in training.findings() if finding.code == "UPD003"]
    assert finding.severity is Severity.MODERATE


@pytest.mark.parametrize(
    ("frozen", "last", "codes"),
    [
        (("stem", "blocks.0", "blocks.1"), ("blocks.2", "head"), ["UPD003"]),
        (("blocks.0", "blocks.1", "blocks.2"), ("first", "head"), []),  # a part with a name, as a whole
        (("stem", "blocks.0", "blocks.1"), ("head",), []),  # one layer on top of random features
    ],
)
def test_most_of_a_new_model_is_frozen(frozen: tuple[str, ...], last: tuple[str, ...], codes: list[str]) -> None:
    names = (*frozen, *last)
    resting = random_weights(*frozen)
    resting["weight_norm"] = {f"{name}.weight": 1.6 + place / 50 for place, name in enumerate(names)}
    training = Training(*names).run(99, **resting)
    assert "UPD003" not in training.alarms()
    assert [code for code in training.run(3, **resting).alarms() if code == "UPD003"] == codes


@pytest.mark.parametrize(("factor", "found"), [(0.0, True), (0.1, False)])
def test_adapters_that_were_frozen_with_their_model(factor: float, found: bool) -> None:
    shapes = {"0.base.weight": (8, 8), "0.A": (2, 8), "0.B": (8, 2), "head.weight": (4, 8)}
    layers = [
        Layer(path, kind=LayerKind.WEIGHT, shape=shape, parameter_count=shape[0] * shape[1], order=place,
              group=path.rpartition(".")[0], module_type="Linear", trainable=path == "head.weight")
        for place, (path, shape) in enumerate(shapes.items())
    ]  # fmt: skip
    training = Training("unused")
    training.layers = LayerTable.of(layers)
    training.engine = Engine([NeverUpdated()])
    training.engine.set_layers(training.layers, training.graph)
    rest = dict.fromkeys(("0.base.weight", "0.A", "0.B"), float(GradientState.FROZEN))
    training.run(102, gradient_state=rest, update_norm=dict.fromkeys(rest, math.nan), weight_max_abs={"0.B": factor},
                 weight_mean=0.0, weight_std=0.2, weight_kurtosis=0.0)  # fmt: skip
    assert [finding.layers for finding in training.findings()] == ([("0.A", "0.B")] if found else [])


def test_a_layer_that_the_program_moves_by_itself_needs_no_optimizer() -> None:
    training = Training()
    for step in range(30):
        training.run(1, gradient_optimizer={"second": -1.0}, weight_norm={"second.weight": 1 + 0.01 * step})
    (finding,) = training.findings()  # the bias stays where it is
    assert (finding.code, finding.layers) == ("UPD003", ("second.bias",))


@pytest.mark.parametrize(
    ("order", "scale", "codes"),
    [
        (None, 1.0, ["UPD003"]),
        (None, 0.97, []),
        (1, 1.0, []),
    ],  # never loaded; trained before; a judge behind the others
)
def test_a_new_part_with_normalisations_under_a_network_that_is_trained(
    order: int | None, scale: float, codes: list[str]
) -> None:
    names = [f"backbone.{kind}_{place}" for place in "ab" for kind in ("conv", "norm")]
    training = stack(NeverUpdated(), *(f"{n}:{'LayerNorm' if 'norm' in n else 'Linear'}" for n in names), "0:Linear",
                     "1:Linear")  # fmt: skip
    backbone = Layer("backbone", kind=LayerKind.MODULE)
    layers = [one.replace(order=order) if one.path.startswith("backbone") else one for one in training.layers]
    training.layers = LayerTable.of([*layers, backbone])
    training.engine.set_layers(training.layers, training.graph)
    bound = 8**-0.5
    drawn = {"weight_max_abs": 0.99 * bound, "weight_mean": 0.0, "weight_std": bound / 3**0.5, "weight_kurtosis": -1.2}
    resting: dict[str, dict[str, float]] = {
        key: {} for key in (*drawn, "gradient_state", "gradient_optimizer", "update_norm")
    }
    resting["weight_norm"] = {layer.path: 2.0 + 0.1 * layer.id for layer in training.layers.parameters}  # no copies
    for layer in training.layers.parameters:
        numbers = {"weight_max_abs": scale, "weight_mean": scale, "weight_std": 0.0, "weight_kurtosis": -3.0}
        for key, value in (drawn if layer.kind is LayerKind.WEIGHT else numbers).items():
            resting[key][layer.path] = value
        if layer.path.startswith("backbone"):
            resting["gradient_state"][layer.path] = GradientState.FROZEN
            resting["gradient_optimizer"][layer.path] = -1.0
            resting["update_norm"][layer.path] = 0.0
    training.run(99, **resting)
    assert training.alarms() == []
    assert training.run(9, **resting).alarms() == codes
