"""WGT003: the signal grows between layers whose weights begin as usual."""

from __future__ import annotations

import pytest
from tests.detect.rules.weights.starts import LINEARS, scaled, start


def test_a_signal_that_grows_between_usual_weights() -> None:
    weights, signals = scaled(_0=0.6, _2=0.6, _4=0.6, _6=0.6), {"0": 0.6, "2": 30.0, "4": 500.0, "6": 9000.0}
    facts = {"loss_kind": 1.0, "loss_classes": 4.0}
    assert "as usual" in start(LINEARS, weights, signals, loss=9000.0, **facts).findings()[0].summary
    assert start(LINEARS, weights, signals, loss=2.0, **facts).codes() == []
    assert start(LINEARS, weights, {**signals, "6": 5.0}, loss=9000.0, **facts).codes() == []


@pytest.mark.parametrize(("loss", "layers"), [(1e14, ("0",)), (10.0, None)])
def test_one_module_that_multiplies_again_and_again(loss: float, layers: tuple[str, ...] | None) -> None:
    weights, signals = scaled(_0=1.2, _2=0.6), {"0": 1e8, "2": 6e7}
    known = {"loss": loss, "loss_kind": 3.0, "target_mean": 0.0, "target_std": 1.0, "input_std": 0.3}
    training = start(("0:Linear", "2:Linear"), weights, signals, **known)
    assert [finding.layers for finding in training.findings()] == ([layers] if layers else [])
