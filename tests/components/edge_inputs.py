"""Results of all components on inputs at the edge: nothing, one, zeros, NaN, infinity, huge; and on ordinary ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from undertow import (
    EnhancedGradientAnalyzer,
    GradientFlowAnimator,
    GradientFlowVisualizer,
    GradientHistory,
    WeightAnalyzer,
)
from undertow.schema.seeds.record import Record

CHANCE = np.random.default_rng(0)
ORDINARY = np.exp(CHANCE.normal(0, 0.1, 200))
SERIES: list[dict[str, list[float]]] = [
    {},
    {"a": []},
    {"a": [0.3]},
    {"a": [0.0] * 12, "b": [0.0] * 12},
    {"a": [1.0] * 30, "b": [0.0] * 30, "c": [math.nan] * 30},
    {"a": [math.nan], "b": [math.inf, 1.0, 2.0]},
    {"a": [1e300] * 5, "b": [5e-324] * 5},
    {"a": [1.0, 2.0, 4.0, 3.0, 5.0], "b": [0.5, 0.4, 0.3, 0.35, 0.2], "c": [0.0] * 5},
    {f"blocks.{number}.w": list(ORDINARY[::-1] if number % 2 else ORDINARY) for number in range(9)},
    {"a": list(1000 * ORDINARY), "b": list(1e-9 * ORDINARY), "c": [0.0, 1.0] * 100},
]
LOSSES = (None, [], [1.0], [math.nan] * 200, list(3 * np.exp(-np.arange(200) / 40) + 0.01 * CHANCE.normal(size=200)))
TENSORS: list[list[list[float]]] = [
    [], [[]], [[math.nan]], [[0.0, 0.0]], [[math.inf, 1.0], [2.0]], [[1e300, -1e300], [3.0, 4.0]],
    [[], [1.0, 2.0, 50.0]],
]  # fmt: skip


def results() -> Iterator[Record]:
    for series in SERIES:
        names = list(series)
        for graph in (None, list(pairwise(names))):
            if graph == []:
                continue
            yield GradientFlowVisualizer().generate_visualization(series, graph=graph)
            yield EnhancedGradientAnalyzer(window=20).analyze_gradients(series, graph=graph)
        sized = [GradientHistory.from_norms(name, norms, parameter_count=5) for name, norms in series.items()]
        yield GradientFlowVisualizer().generate_visualization(sized, 5, unit_activity=dict.fromkeys(names, 0.0))
        for loss in LOSSES:
            yield EnhancedGradientAnalyzer("Expert", window=50).analyze_gradients(
                sized, loss=loss, validation_loss=loss
            )
        yield EnhancedGradientAnalyzer("Basic").analyze_gradients(sized)
    for tensors in TENSORS:
        yield WeightAnalyzer.analyze_weight_distribution(tensors)
        yield WeightAnalyzer.detect_gradient_explosion(tensors, 5.0)
        yield WeightAnalyzer.analyze_weight_drift(tensors, [[2 * one for one in values] for values in tensors])
        for tensor in tensors:
            yield WeightAnalyzer.assess_weight_health(tensor)
    yield from animations()


def animations() -> Iterator[Record]:
    animator = GradientFlowAnimator(4)
    yield animator.summary_report()
    for step, gradient in enumerate([None, [], [0.0], [math.nan], [math.inf, 1.0], [1.0, 2.0]]):
        animator.record_step(step, {"a": gradient, "b": [1.0]})
        yield animator.summary_report()
    yield from animator.frames()
