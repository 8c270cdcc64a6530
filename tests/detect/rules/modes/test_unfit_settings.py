"""MOD002 on frames made by hand: eps and momentum."""

from __future__ import annotations

from typing import Any

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.modes.unfit_settings import UnfitSettings

NET = ("conv:Conv2d", "norm:BatchNorm2d", "relu:ReLU", "drop:Dropout", "head:Linear")


@pytest.mark.parametrize(
    ("setting", "healthy", "bad"),
    [
        ("norm_eps", 1e-3, 1.0),
        ("norm_eps", 1e-12, 0.0),
        ("norm_momentum", 0.01, 0.0),
        ("norm_momentum", 0.3, 0.99),
    ],
)
def test_settings_out_of_range(setting: str, healthy: float, bad: float) -> None:
    module = "norm"
    fine: dict[str, Any] = {"activation_training": 1.0, setting: {module: healthy}}
    training = stack(UnfitSettings, *NET).run(3, **fine)
    assert training.codes() == []
    training.run(1, **{**fine, setting: {module: bad}})
    assert training.findings()[0].layers == (module,)
    assert not training.run(1, **fine).findings()[0].ongoing
