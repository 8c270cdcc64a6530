"""How often the tests speak when there is nothing to say: at most one time in a hundred.

Measured on independent noise (normal, heavy-tailed, skewed), on random walks and on autocorrelated noise; the slow test
does the same on the healthy trainings.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from undertow.analyze.layer_numbers import layer_numbers
from undertow.analyze.loss_forecast import forecast
from undertow.analyze.oscillation import oscillation
from undertow.analyze.run_series import TrainingSeries
from undertow.analyze.series import LayerSeries
from undertow.analyze.trend import trend_test
from undertow.components.gradient_stability import spread_over_time, stability_trend
from undertow.components.hierarchy import build_hierarchy, group_layers
from undertow.components.interactions import layer_interactions
from undertow.components.layer_comparison import distribution_type
from undertow.components.loss_trend import loss_trend
from undertow.components.norm_direction import KINDS, recent_directions
from undertow.components.training_phase import detect_plateau, is_overfitting, learning_phase
from undertow.schema.seeds.dynamics import LearningPhase
from undertow.schema.seeds.enhanced import GradientHierarchy

Maker = Callable[[np.random.Generator, int, int], np.ndarray]
LIMIT = 0.01


def normal(rng: np.random.Generator, count: int, series: int) -> np.ndarray:
    return 10 + rng.normal(size=(count, series))


def heavy(rng: np.random.Generator, count: int, series: int) -> np.ndarray:
    return 10 + rng.standard_t(3, size=(count, series))


def skewed(rng: np.random.Generator, count: int, series: int) -> np.ndarray:
    return np.exp(rng.normal(0, 0.5, size=(count, series)))


def walk(rng: np.random.Generator, count: int, series: int) -> np.ndarray:
    return 100 + np.cumsum(rng.normal(size=(count, series)), axis=0)


def sluggish(rng: np.random.Generator, count: int, series: int) -> np.ndarray:
    values = rng.normal(size=(count + 50, series))
    for row in range(1, len(values)):
        values[row] += 0.7 * values[row - 1]
    return 20 + values[50:]


NOISES: list[Maker] = [normal, heavy, skewed, walk, sluggish]


@pytest.mark.parametrize("make", NOISES)
@pytest.mark.parametrize("count", [20, 50, 100, 500])
def test_trend_and_oscillation(make: Maker, count: int) -> None:
    values = make(np.random.default_rng(count + 7), count, min(20_000, 2_000_000 // count))
    assert np.mean(trend_test(values).direction != 0) <= LIMIT
    assert np.mean(oscillation(values).significant) <= LIMIT


@pytest.mark.parametrize("make", [normal, heavy, skewed])
def test_flow_direction(make: Maker) -> None:
    kinds = recent_directions(np.abs(make(np.random.default_rng(2), 60, 4000)), 50).kind[-1]
    assert np.mean(kinds != KINDS.index("Stagnant")) <= LIMIT


@pytest.mark.parametrize("make", NOISES)
def test_convergence_plateau_and_phase(make: Maker) -> None:
    """A walk may come down and stay down; what it must not be called is falling, settled or on a plateau."""
    losses = make(np.random.default_rng(3), 400, 1000).T
    trends = [loss_trend(loss, 100).trend for loss in losses]
    assert np.mean([trend in ("Converging", "Diverging", "Oscillating") for trend in trends]) <= LIMIT
    plateaus = [detect_plateau(loss, 100) for loss in losses]
    assert np.mean([bool(plateau.is_plateau) for plateau in plateaus]) <= LIMIT
    assert np.mean([not isinstance(forecast(loss), str) for loss in losses]) <= LIMIT
    phases = [learning_phase(TrainingSeries(loss=loss), 100, plateau) for loss, plateau in zip(losses, plateaus)]
    assert np.mean([isinstance(phase, LearningPhase) and phase != "InitialLearning" for phase in phases]) <= LIMIT
    assert np.mean([is_overfitting(loss, other) for loss, other in zip(losses, losses[::-1])]) <= LIMIT


@pytest.mark.parametrize("make", [normal, skewed, walk, sluggish])
def test_stability_trend(make: Maker) -> None:
    values = make(np.random.default_rng(4), 300, 500)
    values = np.exp(0.01 * values)
    series = [LayerSeries.of(["a"], np.arange(300), column[:, None]) for column in values.T]
    spreads = [spread_over_time(item) for item in series]
    assert np.mean([spread is None or stability_trend(spread) != "Stable" for spread in spreads]) <= LIMIT


@pytest.mark.parametrize("make", [normal, heavy, walk])
def test_unrelated_layers_do_not_interact(make: Maker) -> None:
    """Of 100 networks with 435 pairs of layers and 15 pairs of levels each, none."""
    claims = 0
    for seed in range(100):
        values = np.exp(0.1 * make(np.random.default_rng(seed), 200, 30))
        series = LayerSeries.of([f"part{i // 5}.layer{i}.weight" for i in range(30)], np.arange(200), values)
        claims += bool(layer_interactions(series, None, strongest=64, lags=2))
        claims += bool(build_hierarchy_of(series).cross_level_interactions)
    assert claims <= 100 * LIMIT


def build_hierarchy_of(series: LayerSeries) -> GradientHierarchy:
    numbers = layer_numbers(series)
    grouping = group_layers(series, numbers.mean, list(range(len(series.names))))
    return build_hierarchy(series, numbers, grouping, [False] * len(series.names))


@pytest.mark.parametrize("layers", [8, 12, 20, 40, 100])
def test_layers_of_one_kind_are_called_normal(layers: int) -> None:
    rng = np.random.default_rng(6)
    shapes = [distribution_type(10 ** rng.normal(size=layers)) for _ in range(2000)]
    assert np.mean([shape != "Normal" for shape in shapes]) <= LIMIT
    flat = [distribution_type(10 ** rng.uniform(-1, 1, size=layers)) for _ in range(2000)]
    assert np.mean([shape == "Multimodal" for shape in flat]) <= LIMIT


# -- and they do speak when there is something to say ------------------------------------------------------------


def test_power() -> None:
    rng = np.random.default_rng(7)
    time = np.arange(100)[:, None]
    falling = 2 - time / 100 + rng.normal(0, 0.3, size=(100, 500))
    assert np.mean(trend_test(falling).direction < 0) > 0.95
    decaying = np.exp(-time / 30) + rng.normal(0, 0.1, size=(100, 500))
    assert np.mean(trend_test(decaying).direction < 0) > 0.9
    swinging = 5 + (-1.0) ** time + rng.normal(0, 0.3, size=(100, 500))
    assert np.mean(oscillation(swinging).significant) > 0.99
    drift = np.cumsum(0.5 + rng.normal(size=(200, 500)), axis=0)
    assert np.mean(trend_test(drift).direction > 0) > 0.95


@pytest.mark.slow
def test_healthy_trainings(tmp_path: Path) -> None:
    """What the limits say of layers, of the loss and of stability over the whole zoo."""
    import torch

    import undertow
    from corpus.examination import examine
    from corpus.registry import controls
    from undertow.analyze.run_series import gradient_norms, measured_layers, parameter_topology, training_series
    from undertow.components.enhanced_analysis import enhanced_analysis

    torch.set_num_threads(1)
    layers = oscillating = warned = 0
    wrong: list[str] = []
    for name, training in controls("development").items():
        examine(training, tmp_path / name, every=1)
        run = undertow.open_run(tmp_path / name)
        parameters = measured_layers(run)
        norms, graph = gradient_norms(run, parameters), parameter_topology(run.graph, parameters)
        analysis = enhanced_analysis(norms, training_series(run, parameters, run), topology=graph)
        network = analysis.network_level_analysis
        details = analysis.layer_details.values()
        layers += len(details)
        oscillating += sum(bool(item.flow_characteristics.is_oscillating) for item in details)
        if name != "edge_of_stability":  # its norms do swing
            warned += sum(item.health_metrics.overall_health == "Warning" for item in details)
        trend = network.convergence_indicators.convergence_trend
        if trend == "Diverging" or (trend == "Oscillating" and name != "gan"):  # its two losses do take turns
            wrong.append(f"{name}: {trend}")
        if network.stability_assessment.stability_trend not in (None, "Stable"):
            wrong.append(f"{name}: {network.stability_assessment.stability_trend}")
        wrong += [f"{name}: {item.layer_name}" for item in details if item.health_metrics.overall_health == "Critical"]
    assert oscillating <= LIMIT * layers
    assert warned <= LIMIT * layers
    assert wrong == []
