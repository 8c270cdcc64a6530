"""MOD002 on frames made by hand: a momentum next to zero."""

from __future__ import annotations

import math
from typing import Any

from tests.detect.stacks import stack

from undertow.detect.rules.modes.slow_running_averages import SlowRunningAverages

NET = ("conv:Conv2d", "norm:BatchNorm2d", "relu:ReLU", "drop:Dropout", "head:Linear")


def test_a_momentum_next_to_zero_in_a_new_normalisation() -> None:
    settings: dict[str, Any] = {"activation_training": 1.0, "norm_momentum": {"norm": 0.001}}
    new = {"weight_norm": {"norm.weight": math.sqrt(8)}, "update_norm": 0.0, "update_ratio": 0.0}
    training = stack(SlowRunningAverages, *NET).run(3, **settings, **new)
    assert training.findings()[0].layers == ("norm",)
    training.step = 5000  # by now the averages are those of the data
    assert not training.run(1, **settings, **new).findings()[0].ongoing
    assert stack(SlowRunningAverages, *NET).run(3, **settings | {"norm_momentum": {"norm": 0.01}}, **new).codes() == []
    trained = new | {"weight_norm": {"norm.weight": 2.1}}
    assert stack(SlowRunningAverages, *NET).run(3, **settings, **trained).codes() == []
