"""GRD003: unused or cut off, nobody can tell."""

from __future__ import annotations

import math

from tests.detect.building import Training

from undertow.schema import LayerTable, Severity


def test_a_layer_that_nobody_saw_running_is_a_hint() -> None:
    training = Training()
    layers = [layer.replace(order=None) if layer.path.startswith("head") else layer for layer in training.layers]
    training.layers = LayerTable.of(layers)
    training.engine.set_layers(training.layers, training.graph)
    nothing = {"head": math.nan}
    training.run(
        25, streams=("gradient", "update"), gradient_state={"head": 1.0}, gradient_norm=nothing,
        gradient_zero_fraction=nothing, gradient_nonfinite_count=nothing, update_norm={"head": 0.0},
    )  # fmt: skip
    (finding,) = [found for found in training.findings() if found.code == "GRD003"]
    assert (finding.variant, finding.severity) == ("gradient-unaccounted-for", Severity.MILD)
    assert finding.layers == ("head.weight", "head.bias")
