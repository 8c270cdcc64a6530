"""MOD001 on frames made by hand: dropout rates."""

from __future__ import annotations

from typing import Any

from tests.detect.stacks import stack

from undertow.detect.rules.modes.heavy_dropout import HeavyDropout

NET = ("conv:Conv2d", "norm:BatchNorm2d", "relu:ReLU", "drop:Dropout", "head:Linear")
PARTS = ("conv", "norm", "relu", "drop", "head")


def modes(**asleep: float) -> dict[str, float]:
    return {part: asleep.get(part, 1.0) for part in PARTS}


def test_a_dropout_that_is_given_the_share_to_keep() -> None:
    usual: dict[str, Any] = {"activation_training": 1.0, "dropout_rate": {"drop": 0.8}}
    training = stack(HeavyDropout, *NET).run(3, **usual)
    assert training.codes() == []
    training.run(1, **usual | {"dropout_rate": {"drop": 0.97}})
    assert training.findings()[0].layers == ("drop",)
    assert not training.run(1, **usual).findings()[0].ongoing


def test_the_rate_of_a_dropout_in_evaluation_mode_does_nothing() -> None:
    training = stack(HeavyDropout, *NET)
    training.run(1, activation_training=modes(drop=0.0), dropout_rate={"drop": 0.97})
    assert training.codes() == []
