"""GRD002: gradients explode."""

from __future__ import annotations

import pytest
from tests.detect.building import Training, watched_by

from undertow.detect.engine import Engine
from undertow.detect.rules.gradients.exploding_gradient import ExplodingGradient
from undertow.schema import LayerKind, LayerTable

NAMES = ("a", "b", "c", "d", "e", "f")


def by_depth(decades: float, top: float = 1e-2) -> dict[str, float]:
    """Gradient sizes that rise evenly by so many decades from the first layer to the last."""
    last = len(NAMES) - 1
    return {name: top * 10 ** (decades * (place - last) / last) for place, name in enumerate(NAMES)}


def test_growth_towards_the_input_is_exploding() -> None:
    training = watched_by(ExplodingGradient, names=NAMES)
    training.run(5, gradient_rms=by_depth(-5))
    (finding,) = training.findings()
    assert (finding.code, finding.detected_step) == ("GRD002", 2)
    assert finding.layers[0] == "a.weight"


@pytest.mark.parametrize(("sizes", "found"), [((3e-2, 1e-2, 2e-5, 5e-5), []), ((1e-1, 1e-2, 1e-3, 1e-5), ["GRD002"])])
def test_a_trunk_and_a_small_second_loss_make_no_line(sizes: tuple[float, ...], found: list[str]) -> None:
    names = ("trunk", "middle", "redraw", "picture")
    training = watched_by(ExplodingGradient, names=names)
    training.run(5, gradient_rms={f"{name}.weight": size for name, size in zip(names, sizes, strict=True)})
    assert training.codes() == found


def recurrent() -> Training:
    training = Training("rnn", "head")
    cell = {"path": "rnn.weight_hh_l0", "kind": LayerKind.RECURRENT}
    layers = [layer.replace(**cell) if layer.path == "rnn.weight" else layer for layer in training.layers]
    training.layers = LayerTable.of(layers)
    training.engine = Engine([ExplodingGradient])
    training.engine.set_layers(training.layers, training.graph)
    return training


def test_a_recurrent_weight_that_explodes_is_named_at_once() -> None:
    training = recurrent()
    training.run(1, gradient_norm={"rnn.weight_hh_l0": 400.0}, update_ratio=1.0, update_norm=1.0)
    (finding,) = training.findings()
    assert (finding.layers, finding.detected_step) == (("rnn.weight_hh_l0",), 0)
    assert "through time" in finding.summary


def test_a_module_that_runs_many_times_counts_as_recurrent() -> None:
    training = watched_by(ExplodingGradient, names=("cell", "head"))
    training.run(3, gradient_norm={"cell.weight": 150.0}, activation_calls={"cell": 20.0})
    assert training.findings()[0].layers == ("cell.weight",)
    other = watched_by(ExplodingGradient, names=("cell", "head"))
    other.run(3, gradient_norm={"cell.weight": 150.0})
    assert other.findings() == []


@pytest.mark.parametrize("scale", [1e-5, 1e5])
def test_sensitivity_is_relative_to_the_loss(scale: float) -> None:
    training = recurrent()
    training.run(10, gradient_norm=scale, scalars={"loss": scale})
    assert training.findings() == []


def test_growth_over_time_needs_a_loss_above_its_start() -> None:
    for loss, codes in ((3.0, ["GRD002"]), (0.5, [])):
        training = watched_by(ExplodingGradient, names=NAMES)
        training.run(20, scalars={"gradient_norm_total": 0.1})
        training.run(20, scalars={"gradient_norm_total": 1e4, "loss": loss})
        assert training.codes() == codes
