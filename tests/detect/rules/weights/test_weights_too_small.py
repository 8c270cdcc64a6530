"""WGT003: all weights begin too small."""

from __future__ import annotations

from typing import Any

from tests.detect.rules.weights.starts import LINEARS, STARTS, scaled, start
from tests.detect.stacks import stack


def test_usual_weights_are_healthy() -> None:
    training = start(LINEARS, scaled(_0=0.58, _2=0.58, _4=0.58, _6=0.58), {"0": 0.5, "2": 0.2, "4": 0.1, "6": 0.05})
    assert training.codes() == []


def test_all_too_small() -> None:
    weights = scaled(_0=0.08, _2=0.08, _4=0.08, _6=0.08)
    training = start(LINEARS, weights, {"0": 0.08, "2": 6e-3, "4": 5e-4, "6": 4e-5})
    (finding,) = training.findings()
    assert (finding.code, finding.layers, finding.detected_step) == ("WGT003", (), 0)
    assert "too small" in finding.summary


def test_somewhat_small_ones_are_told_where_nothing_is_learnt() -> None:
    faint: dict[str, Any] = {
        "weight_norm": scaled(_0=0.4, _2=0.4, _4=0.4, _6=0.4), "update_norm": 0.0, "update_ratio": 0.0,
        "activation_std": {"0": 0.4, "2": 0.05, "4": 0.02, "6": 5e-3}, "activation_sample_spread": 1.0,
    }  # fmt: skip
    training = stack(STARTS, *LINEARS).run(59, **faint)
    assert training.codes() == []
    (finding,) = training.run(1, **faint).findings()
    assert (finding.code, finding.layers) == ("WGT003", ())
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
    assert (finding.code, finding.layers) == ("WGT003", ())
    assert start(blocks, scaled(_0=0.58, _2=1e-3, _4=1e-3, _6=1e-3), signals).codes() == []
