"""The original's five alerts: from histories by its limits, from a run by what its diagnosis found."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from undertow.analyze.oscillation import MINIMUM, oscillation
from undertow.analyze.run_series import RunNumbers, gradient_norms, live_shares, measured_layers
from undertow.analyze.series import Floats, LayerSeries
from undertow.analyze.trend import detrend
from undertow.components.run_verdicts import RunVerdicts
from undertow.schema import Finding
from undertow.schema.seeds.arrays import InputError
from undertow.schema.seeds.history import (
    ALERT_CODES,
    DeadNeurons,
    ExplodingGradients,
    GradientAlert,
    GradientDebugConfig,
    GradientHistory,
    GradientOscillation,
    NoGradientFlow,
    VanishingGradients,
)

WINDOW = 100  # newest samples that swings are looked for in


def gradient_alerts(
    histories: Mapping[str, Any] | Iterable[GradientHistory],
    config: GradientDebugConfig | Mapping[str, Any] | None = None,
    *,
    unit_activity: Mapping[str, float] | None = None,
) -> list[GradientAlert]:
    """What is wrong at the newest sample of each layer, by the limits of `config`, in the order of the layers.

    `unit_activity` is the share of live units per layer; without it nothing is said of dead neurons.
    """
    limits = GradientDebugConfig.given(config)
    if not limits.vanishing_threshold <= limits.exploding_threshold:
        raise InputError(
            f"vanishing_threshold is {limits.vanishing_threshold}, above exploding_threshold "
            f"{limits.exploding_threshold}"
        )
    series = LayerSeries.from_histories(histories)
    found: list[GradientAlert] = []
    for layer, name in enumerate(series.names):
        norms = series.column(layer)[1]
        if len(norms):
            found += _alerts(name, norms, limits, (unit_activity or {}).get(name))
    return found


def _alerts(name: str, norms: Floats, limits: GradientDebugConfig, activity: float | None) -> Iterator[GradientAlert]:
    newest = float(norms[-1])
    if newest < limits.vanishing_threshold:
        yield VanishingGradients(name, newest, limits.vanishing_threshold)
    if newest > limits.exploding_threshold or np.isnan(newest):  # NaN is past any limit
        yield ExplodingGradients(name, newest, limits.exploding_threshold)
    if activity is not None and 1 - activity > limits.dead_neuron_threshold:
        yield DeadNeurons(name, 1 - activity, limits.dead_neuron_threshold)
    recent = norms[-WINDOW:]
    if len(recent) >= MINIMUM and np.isfinite(recent).all():
        variance = _variance(recent)
        if variance > limits.oscillation_variance_threshold or bool(oscillation(recent[:, None]).significant[0]):
            yield GradientOscillation(name, variance)
    still = int(np.argmin([*(norms[::-1] < limits.dead_element_magnitude), False]))
    if still >= limits.no_gradient_steps_threshold:
        yield NoGradientFlow(name, still)


def _variance(norms: Floats) -> float:
    """Around the line through the norms: a trend is no swing."""
    unit = float(norms.max()) or 1.0  # squares of huge norms would leave the range of numbers
    return min(float(np.square(detrend(norms[:, None] / unit)[1]).mean()) * unit * min(unit, 1e150), 1e308)


def alerts_of_run(
    run: RunNumbers, findings: Sequence[Finding], config: GradientDebugConfig | Mapping[str, Any] | None = None
) -> list[GradientAlert]:
    """One for each layer that an ongoing finding of that kind names, with the run's own newest numbers.

    What is wrong with a run is said by its diagnosis alone; of `config` the alerts carry the limits.
    """
    limits, verdicts = GradientDebugConfig.given(config), RunVerdicts([one for one in findings if one.ongoing])
    series, shares = gradient_norms(run, measured_layers(run)), live_shares(run)
    found: list[GradientAlert] = []
    for layer, name in enumerate(series.names):
        norms = series.column(layer)[1]
        finite = norms[np.isfinite(norms)][-WINDOW:]
        for kind, codes in ALERT_CODES.items():
            named = verdicts.of(name, codes) if len(norms) else []
            if named and kind == "VanishingGradients":
                found.append(VanishingGradients(name, float(norms[-1]), limits.vanishing_threshold))
            elif named and kind == "ExplodingGradients":
                found.append(ExplodingGradients(name, float(norms[-1]), limits.exploding_threshold))
            elif named and kind == "GradientOscillation":
                found.append(GradientOscillation(name, _variance(finite) if len(finite) else np.nan))
            elif named and kind == "NoGradientFlow":
                found.append(NoGradientFlow(name, named[0].last_step - named[0].first_step + 1))
    modules = dict.fromkeys(
        name for one in verdicts.findings if one.code in ALERT_CODES["DeadNeurons"] for name in one.layers
    )
    return found + [
        DeadNeurons(name, 1 - shares[name], limits.dead_neuron_threshold) for name in modules if name in shares
    ]
