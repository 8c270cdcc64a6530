"""UPD003 frozen-untrained."""

from __future__ import annotations

import pytest
from tests.detect.building import Training
from tests.detect.random_weights import random_weights
from tests.detect.stacks import stack

from undertow.detect.rules.updates.frozen_untrained import FrozenUntrained
from undertow.schema import GradientState, Layer, LayerKind, LayerTable, Severity


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


@pytest.mark.parametrize(("resting", "found"), [("layer2", True), ("teacher", False), ("teacher2", False)])
def test_a_whole_part_that_rests_is_meant_unless_it_is_one_of_a_series(resting: str, found: bool) -> None:
    names = ("layer1.a", "layer1.b", f"{resting}.a", f"{resting}.b", "layer3.a", "layer3.b", "head")
    frozen = random_weights(f"{resting}.a", f"{resting}.b")
    frozen["weight_norm"] = {f"{name}.weight": 1.6 + place / 50 for place, name in enumerate(names)}
    assert ("UPD003" in Training(*names).run(40, **frozen).alarms()) is found


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


@pytest.mark.parametrize(("rank", "codes"), [(2, []), (8, ["UPD003"])])
def test_a_frozen_layer_with_an_adapter_is_meant(rank: int, codes: list[str]) -> None:
    names = ("stem", "block.base", "block.down", "block.up", "third", "head")
    training = Training(*names)
    shapes = {"block.down.weight": (rank, 8), "block.up.weight": (8, rank)}
    training.layers = LayerTable.of([one.replace(shape=shapes.get(one.path, one.shape)) for one in training.layers])
    training.engine.set_layers(training.layers, training.graph)
    frozen = random_weights("block.base")
    frozen["weight_norm"] = {f"{name}.weight": 1.6 + place / 50 for place, name in enumerate(names)}
    assert [code for code in training.run(40, **frozen).alarms() if code == "UPD003"] == codes


@pytest.mark.parametrize(
    ("blocks", "scale", "codes"),
    [(3, 1.0, ["UPD003"]), (3, 0.97, []), (1, 1.0, [])],  # nobody loaded it; trained before; a layer of random features
)
def test_a_frozen_backbone_that_nobody_has_loaded(blocks: int, scale: float, codes: list[str]) -> None:
    names = [name for i in range(blocks) for name in (f"body.{2 * i}:Conv2d", f"body.{2 * i + 1}:BatchNorm2d")]
    frozen = tuple(name.partition(":")[0] for name in names)
    norms = {f"body.{2 * i + 1}.weight": scale for i in range(blocks)}
    training = stack(FrozenUntrained, *names, "head:Linear", frozen=frozen)
    rest, still = dict.fromkeys(frozen, float(GradientState.FROZEN)), dict.fromkeys(frozen, 0.0)
    training.run(
        40, gradient_state=rest, update_norm=still, update_ratio=still,
        weight_max_abs=norms, weight_mean=norms, weight_std=dict.fromkeys(norms, 0.0),
    )  # fmt: skip
    assert training.alarms() == codes


def test_layers_released_one_after_the_other_are_frozen_by_plan() -> None:
    training = Training().run(3, **random_weights("first", "second"))
    assert "UPD003" not in training.run(12, **random_weights("first")).alarms()


def test_a_new_layer_that_waits_for_its_turn_is_silent() -> None:
    training = Training().run(20, **random_weights("second"))
    assert "UPD003" not in training.run(20, **random_weights()).codes()


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
    training = stack(FrozenUntrained, *(f"{n}:{'LayerNorm' if 'norm' in n else 'Linear'}" for n in names), "0:Linear",
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


def test_layers_that_no_forward_pass_uses_hold_up_nothing() -> None:
    training = Training()
    training.run(40, **random_weights("second"), activation_calls={"second": 0.0})
    assert training.alarms() == []
