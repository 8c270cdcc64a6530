"""WGT003: all weights, or several, begin too large or too small."""

from __future__ import annotations

from typing import Any

from tests.detect.rules.weights.starts import LINEARS, STARTS, scaled, start
from tests.detect.stacks import stack


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


def test_usual_weights_are_healthy() -> None:
    training = start(LINEARS, scaled(_0=0.58, _2=0.58, _4=0.58, _6=0.58), {"0": 0.5, "2": 0.2, "4": 0.1, "6": 0.05})
    assert training.codes() == []


def test_all_too_small() -> None:
    weights = scaled(_0=0.08, _2=0.08, _4=0.08, _6=0.08)
    training = start(LINEARS, weights, {"0": 0.08, "2": 6e-3, "4": 5e-4, "6": 4e-5})
    (finding,) = training.findings()
    assert (finding.code, finding.layers, finding.detected_step) == ("WGT003", ("0", "2", "4", "6"), 0)
    assert "too small" in finding.summary


def test_somewhat_small_ones_are_told_where_nothing_is_learnt() -> None:
    faint: dict[str, Any] = {
        "weight_norm": scaled(_0=0.4, _2=0.4, _4=0.4, _6=0.4), "update_norm": 0.0, "update_ratio": 0.0,
        "activation_std": {"0": 0.4, "2": 0.05, "4": 0.02, "6": 5e-3}, "activation_sample_spread": 1.0,
    }  # fmt: skip
    training = stack(STARTS, *LINEARS).run(59, **faint)
    assert training.codes() == []
    (finding,) = training.run(1, **faint).findings()
    assert (finding.code, finding.layers) == ("WGT003", ("0", "2", "4", "6"))
    training = stack(STARTS, *LINEARS)
    for step in range(90):
        training.run(1, scalars={"loss": 0.99**step}, **faint)
    assert training.codes() == []
    adversaries = stack(STARTS, *LINEARS)
    for step in range(140):
        adversaries.run(1, scalars={"loss": 1.0, f"lr_{step % 2}": 1e-3}, **faint)
    assert adversaries.codes() == []
    usual = faint | {"weight_norm": scaled(_0=0.58, _2=0.58, _4=0.58, _6=0.58)}
    assert stack(STARTS, *LINEARS).run(90, **usual).codes() == []


def test_small_weights_behind_normalisations_are_healthy() -> None:
    weights = scaled(_0=0.08, _2=0.08, _4=0.08, _6=0.08)
    training = start(LINEARS, weights, {"0": 0.08, "2": 0.08, "4": 0.08, "6": 0.08})
    assert training.codes() == []
    blocks = ("0:Linear", "1:LayerNorm", "2:Linear", "4:Linear", "5:LayerNorm", "6:Linear")
    assert start(blocks, weights, {"0": 0.08, "2": 0.08, "4": 6e-3, "6": 5e-4}).codes() == []


def test_weights_that_are_all_next_to_nothing_are_not_whatever_normalises() -> None:
    blocks = ("0:Linear", "1:LayerNorm", "2:Linear", "4:Linear", "5:LayerNorm", "6:Linear")
    signals = {"0": 1e-3, "2": 1e-3, "4": 1e-6, "6": 1e-3}
    (finding,) = start(blocks, scaled(_0=1e-3, _2=1e-3, _4=1e-3, _6=1e-3), signals).findings()
    assert (finding.code, finding.layers) == ("WGT003", ("0", "2", "4", "6"))
    assert start(blocks, scaled(_0=0.58, _2=1e-3, _4=1e-3, _6=1e-3), signals).codes() == []
