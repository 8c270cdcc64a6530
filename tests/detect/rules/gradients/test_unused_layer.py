"""GRD003: parameters in the optimizer without a gradient, where that is harmless or nobody can tell."""

from __future__ import annotations

import math

from tests.detect.building import Training

from undertow.schema import LayerTable, Severity


def without_gradient(steps: int, path: str, **more: object) -> Training:
    nothing = {path: math.nan}
    return Training().run(
        steps, gradient_state={path: 1.0}, gradient_norm=nothing, gradient_zero_fraction=nothing,
        gradient_nonfinite_count=nothing, update_norm={path: 0.0}, **more,
    )  # fmt: skip


def test_a_module_that_never_runs_is_only_noted() -> None:
    training = without_gradient(60, "head", activation_calls={"head": 0.0})
    assert training.alarms() == []
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("GRD003", Severity.INFO)


def test_a_bias_alone_is_not_cut_off() -> None:
    training = without_gradient(60, "head.bias")
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD003", Severity.INFO, ("head.bias",))


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
    assert finding.severity is Severity.MILD
    assert finding.layers == ("head.weight", "head.bias")
