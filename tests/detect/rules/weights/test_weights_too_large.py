"""WGT003: all weights, or several, begin too large."""

from __future__ import annotations

from tests.detect.rules.weights.starts import LINEARS, scaled, start


def test_all_too_large() -> None:
    weights = scaled(_0=8, _2=8, _4=8, _6=8)
    training = start(LINEARS, weights, {"0": 8.0, "2": 50.0, "4": 300.0, "6": 2000.0})
    assert "too large" in training.findings()[0].summary


def test_those_that_are_too_large_are_named_where_the_others_are_as_usual() -> None:
    parts = (*LINEARS, "7:Tanh", "8:Linear", "9:Linear")
    weights = scaled(_0=0.58, _2=9.0, _4=9.0, _6=9.0, _8=9.0, _9=0.58)
    signals = {"0": 0.6, "2": 5.0, "4": 45.0, "6": 400.0, "8": 4e3, "9": 2e3}
    (finding,) = start(parts, weights, signals).findings()
    assert finding.layers == ("2", "4", "6", "8")
    some = scaled(_0=0.58, _2=0.58, _4=0.58, _6=9.0, _8=9.0, _9=0.58)
    signals = {"0": 0.6, "2": 0.5, "4": 0.4, "6": 90.0, "8": 4e3, "9": 2e3}
    (finding,) = start(parts, some, signals, loss=2e3, loss_kind=1.0, loss_classes=10.0).findings()
    assert finding.layers == ("6", "8")


def test_all_too_large_between_normalisations_shows_in_what_comes_out() -> None:
    weights, signals = scaled(_0=6, _2=6, _4=6, _6=6), {"0": 6.0, "2": 6.0, "4": 6.0, "6": 6.0}
    unsure = start(LINEARS, weights, signals, output_max_probability=0.3, output_accuracy=0.1)
    assert unsure.codes() == []
    sure = start(LINEARS, weights, signals, output_max_probability=0.99, output_accuracy=0.1)
    assert sure.codes() == ["WGT003"]


def test_a_trained_model_may_be_sure() -> None:
    weights, signals = scaled(_0=6, _2=6, _4=6, _6=6), {"0": 6.0, "2": 6.0, "4": 6.0, "6": 6.0}
    assert start(LINEARS, weights, signals, output_max_probability=0.99, output_accuracy=0.97).codes() == []
