"""Whatever numbers come in, there is a defined result: no exception, no warning, nothing healthy about NaN."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from undertow import EnhancedGradientAnalyzer, GradientFlowAnimator, GradientFlowVisualizer, WeightAnalyzer

EXTREME = st.sampled_from(
    [0.0, 1e-320, 1e-300, 1e-30, 1e-8, 1e-5, 1.0, 1.0, 1.0, 100.0, 1e30, 1e300, math.nan, math.inf]
)
NORMS = st.lists(EXTREME | st.floats(0, 10), max_size=40) | st.builds(
    lambda value, count: [value] * count, EXTREME, st.integers(0, 130)
)
NAMES = st.sampled_from(["a", "b.weight", "b.bias", "blocks.0.w", "blocks.1.w", "層"])
LAYERS = st.dictionaries(NAMES, NORMS, max_size=4)
LOSS = st.none() | st.lists(EXTREME | st.floats(-5, 5), max_size=220)
VALUES = st.lists(EXTREME | EXTREME.map(lambda value: -value), max_size=30)


def encoded(result: Any) -> Any:
    """As JSON, which has no NaN."""
    return json.loads(msgspec.json.encode(result), parse_constant=lambda word: math.nan)


@settings(max_examples=150, deadline=None)
@given(LAYERS, st.booleans(), st.none() | st.integers(0, 50))
def test_flow(layers: dict[str, list[float]], joined: bool, step: int | None) -> None:
    names = list(layers)
    graph = list(pairwise(names)) if joined and len(names) > 1 else None
    flow = GradientFlowVisualizer().generate_visualization(layers, step, graph)
    assert set(flow.layer_flows) == set(layers)
    bad = {name for name, norms in layers.items() if not np.isfinite(norms).all()}
    assert {layer.layer_name for layer in flow.nonfinite_layers} == bad
    assert all(flow.layer_flows[name].flow_consistency is None for name in bad)
    encoded(flow.flow_network)


@settings(max_examples=150, deadline=None)
@given(LAYERS, st.booleans(), LOSS)
def test_enhanced(layers: dict[str, list[float]], joined: bool, loss: list[float] | None) -> None:
    names = list(layers)
    graph = list(pairwise(names)) if joined and len(names) > 1 else None
    analysis = EnhancedGradientAnalyzer(window=20).analyze_gradients(layers, graph, loss, validation_loss=loss)
    for name, norms in layers.items():
        health = analysis.layer_details[name].health_metrics.overall_health
        if not np.isfinite(norms).all():
            assert health == "Critical"
        elif len(norms) < 3:
            assert health == "Unknown"
        elif not any(norms):
            assert health == "Critical"
    assert all(0 <= priority.priority_score <= 1 for priority in analysis.optimization_priorities)
    encoded(analysis)


@settings(max_examples=150, deadline=None)
@given(st.lists(VALUES, max_size=4))
def test_weights(arrays: list[list[float]]) -> None:
    report = WeightAnalyzer.analyze_weight_distribution(arrays)
    for values, layer in zip(arrays, report.layer_analyses, strict=True):
        assert (layer.health_score == 0) is (not np.isfinite(values).all())
        assert layer.statistics.count + layer.statistics.nonfinite_count == len(values)
    explosion = WeightAnalyzer.detect_gradient_explosion(arrays, 5.0)
    assert explosion.nonfinite_layers == [
        place for place, values in enumerate(arrays) if not np.isfinite(values).all()
    ]  # fmt: skip
    drift = WeightAnalyzer.analyze_weight_drift(arrays, [list(reversed(values)) for values in arrays])
    assert len(drift.layer_drifts) == len(arrays)
    encoded((report, explosion, drift))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(NAMES, st.none() | VALUES, max_size=3), max_size=4))
def test_animator(frames: list[dict[str, list[float] | None]]) -> None:
    animator = GradientFlowAnimator(3)
    for step, gradients in enumerate(frames):
        animator.record_step(step, gradients)
    picture = animator.to_ascii_animation(scale="log")
    kept = frames[-3:]
    bad = any(values and not np.isfinite(values).all() for frame in kept for values in frame.values())
    assert ("×" in picture) is bad
    summary = animator.summary_report()
    if any(values and not np.isfinite(values).all() for frame in frames for values in frame.values()):
        assert summary.overall_health == "Critical"
    encoded(summary)
