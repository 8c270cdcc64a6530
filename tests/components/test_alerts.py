"""The five alerts of the original, from arrays by its limits and from a run by its diagnosis."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.varied import varied_run

import undertow
from undertow import gradient_alerts
from undertow.schema import (
    DeadNeurons,
    ExplodingGradients,
    GradientDebugConfig,
    GradientOscillation,
    InputError,
    NoGradientFlow,
    VanishingGradients,
)
from undertow.schema.seeds.history import ALERT_CODES

SWINGS = [1.0, 3.0] * 20


def test_each_kind_carries_what_it_saw_and_the_limit() -> None:
    alerts = gradient_alerts(
        {"small": [1.0, 1e-9], "large": [1.0, 11.0], "swings": SWINGS, "gone": [1.0] + [0.0] * 10, "fine": [1.0] * 40},
        unit_activity={"fine": 0.95, "small": 0.5},
    )
    assert alerts == [
        VanishingGradients("small", 1e-9, 1e-7),
        DeadNeurons("small", 0.5, 0.1),
        ExplodingGradients("large", 11.0, 10.0),
        GradientOscillation("swings", pytest.approx(1.0, rel=0.02)),
        VanishingGradients("gone", 0.0, 1e-7),
        NoGradientFlow("gone", 10),
    ]
    assert [alert.code for alert in alerts] == ["GRD001", "ACT001", "GRD002", "GRD005", "GRD001", "GRD003"]


def test_every_setting_is_read() -> None:
    norms = {"a": [2.0, 3.0] * 10, "b": [1e-3] * 12}
    (swings,) = gradient_alerts(norms, {"oscillation_variance_threshold": 1e9})
    assert swings == GradientOscillation("a", pytest.approx(0.25, rel=0.05))
    changed = gradient_alerts(
        {"a": [float(value) for value in np.random.default_rng(0).exponential(3.0, 60)], "b": [1e-3] * 12},
        GradientDebugConfig(
            vanishing_threshold=1e-2, exploding_threshold=1e9, dead_neuron_threshold=0.6,
            oscillation_variance_threshold=1.0, no_gradient_steps_threshold=12, dead_element_magnitude=1e-2,
        ),
        unit_activity={"a": 0.5, "b": 0.3},
    )  # fmt: skip
    assert [type(one).__name__ for one in changed] == [
        "GradientOscillation", "VanishingGradients", "DeadNeurons", "NoGradientFlow",
    ]  # fmt: skip
    with pytest.raises(InputError, match="vanishing_threshold is 20"):
        gradient_alerts(norms, {"vanishing_threshold": 20.0})
    with pytest.raises(InputError, match=r"no setting 'vanishing'.*vanishing_threshold"):
        gradient_alerts(norms, {"vanishing": 20.0})


def test_noise_is_no_alarm_and_nan_is_one() -> None:
    chance = np.random.default_rng(0)
    noise = {f"layer{number}": np.exp(chance.normal(0, 0.3, 200)) for number in range(100)}
    assert len(gradient_alerts(noise)) <= 1
    (alert,) = gradient_alerts({"a": [1.0, math.nan], "b": []})
    assert isinstance(alert, ExplodingGradients)
    assert math.isnan(alert.norm)
    gradient_alerts({"a": [1e300, 1.0] * 20, "b": [math.inf] * 20})


def test_those_of_a_run_are_those_of_its_diagnosis(tmp_path: Path) -> None:
    run = undertow.open_run(varied_run(tmp_path / "run"))
    alerts = run.alerts()
    ongoing = {(finding.code, layer) for finding in run.findings if finding.ongoing for layer in finding.layers}
    assert alerts
    for alert in alerts:
        codes = ALERT_CODES[type(alert).__name__]
        assert any(code in codes and alert.layer_name.startswith(layer) for code, layer in ongoing)
    kinds = {name for name, codes in ALERT_CODES.items() if any(code in codes for code, _ in ongoing)}
    assert {type(alert).__name__ for alert in alerts} <= kinds
    assert run.alerts(findings=()) == []
