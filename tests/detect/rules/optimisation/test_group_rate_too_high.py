"""OPT007: one parameter group has a learning rate far above the others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.detect.courses import OPT007, falling, training


@pytest.mark.parametrize(("losses", "layers"), [([4.0] * 80, ("head.bias",)), (falling(80), None)])
def test_one_group_far_ahead_while_nothing_is_learnt(losses: Any, layers: tuple[str, ...] | None) -> None:
    run, rates = training(*OPT007), {"head.bias": 2.0}
    settings = {layer.path: rates.get(layer.path, 4e-3) for layer in run.layers.parameters}
    streams = ("gradient", "weight", "update", "optimizer")
    for loss in losses:
        run.run(1, scalars={"loss": loss, "lr": 2.0}, streams=streams, optimizer_rate=settings, update_ratio=1e-3)
    assert [finding.layers for finding in run.findings()] == ([layers] if layers else [])
