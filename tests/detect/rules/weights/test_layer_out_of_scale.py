"""WGT003: one layer begins far larger or smaller than the others."""

from __future__ import annotations

from tests.detect.rules.weights.starts import LINEARS, STARTS, USUAL, scaled, start
from tests.detect.stacks import stack


def test_one_layer_too_large() -> None:
    weights = scaled(_0=0.6, _2=0.6, _4=200, _6=0.6)
    training = start(LINEARS, weights, {"0": 0.5, "2": 0.3, "4": 60.0, "6": 30.0})
    assert training.findings()[0].layers == ("4",)


def test_one_of_two_layers_far_too_large() -> None:
    two, signals = ("0:Linear", "1:Tanh", "2:Linear"), {"0": 0.5, "2": 30.0}
    assert start(two, scaled(_0=0.6, _2=80), signals).findings()[0].layers == ("2",)
    assert start(two, scaled(_0=0.6, _2=8), signals).codes() == []


def test_one_layer_too_small() -> None:
    weights = scaled(_0=0.6, _2=0.6, _4=1e-4, _6=0.6)
    training = start(LINEARS, weights, {"0": 0.5, "2": 0.3, "4": 3e-5, "6": 2e-5})
    assert training.findings()[0].layers == ("4",)


def test_a_small_layer_beside_a_residual_path_is_healthy() -> None:
    weights = scaled(_0=0.6, _2=0.6, _4=1e-4, _6=0.6)
    assert start(LINEARS, weights, {"0": 0.5, "2": 0.3, "4": 3e-5, "6": 0.3}).codes() == []


def test_a_small_or_zero_last_layer_is_healthy() -> None:
    signals = {"0": 0.5, "2": 0.3, "4": 0.2, "6": 1e-4}
    assert start(LINEARS, scaled(_0=0.6, _2=0.6, _4=0.6, _6=1e-3), signals).codes() == []
    assert start(LINEARS, scaled(_0=0.6, _2=0.6, _4=0.6, _6=0), signals).codes() == []


def test_a_large_layer_in_front_of_a_normalisation_is_healthy() -> None:
    parts = ("0:Linear", "2:Linear", "4:Linear", "5:BatchNorm1d", "6:Linear")
    weights = scaled(_0=0.6, _2=0.6, _4=200, _6=0.6)
    assert start(parts, weights, {"0": 0.5, "2": 0.3, "4": 60.0, "6": 0.5}).codes() == []


def test_weights_are_judged_before_their_first_update() -> None:
    """A learning rate that throws small weights far in the first step is another fault."""
    training = stack(STARTS, *LINEARS)
    training.run(1, weight_norm=50 * USUAL, update_norm=50 * USUAL, update_ratio=50.0 / 0.6, activation_std=0.5)
    assert training.codes() == []
