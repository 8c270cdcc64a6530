"""Whole records of varied input, number by number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden import assert_as_before, text_of
from tests.varied import varied_run

from undertow import (
    EnhancedGradientAnalyzer,
    GradientFlowAnimator,
    GradientFlowVisualizer,
    GradientHistory,
    Run,
    WeightAnalyzer,
    open_run,
)

GOLDEN = Path(__file__).parent / "golden"
STEPS = 60
CHAIN = [("net.0.a", "net.0.b"), ("net.0.b", "net.1.a"), ("net.1.a", "net.1.b"), ("net.1.b", "head")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(varied_run(tmp_path_factory.mktemp("runs") / "varied"))


@pytest.mark.parametrize("what", ["flow", "dynamics", "weights", "diagnose"])
def test_of_a_run(run: Run, what: str) -> None:
    assert_as_before(GOLDEN / f"run_{what}.json", text_of(getattr(run, what)()))


def histories() -> list[GradientHistory]:
    """Layers that vanish, explode, die, swing and hold still."""
    chance, steps = np.random.default_rng(3), np.arange(STEPS)
    noise = np.exp(chance.normal(0, 0.1, (5, STEPS)))
    courses = [0.8**steps, 1.2**steps, np.where(steps < 20, 0.1, 0.0), np.where(steps % 2, 4.0, 0.2), np.ones(STEPS)]
    names = [first for first, _ in CHAIN] + ["head"]
    cosines = np.cos(np.outer(np.arange(1, 6), steps) / 9)
    return [
        GradientHistory.from_norms(name, course * one, steps, 10 * (place + 1), cosines=cosines[place])
        for place, (name, course, one) in enumerate(zip(names, courses, noise))
    ]


def weights(scale: float = 1.0) -> dict[str, np.ndarray[Any, Any]]:
    chance = np.random.default_rng(5)
    plain = {"plain.weight": chance.normal(0, 0.1, (16, 8)), "heavy.weight": chance.standard_t(2, (16, 16))}
    plain |= {
        "zero.weight": np.zeros((4, 4)),
        "plain.bias": np.full(8, 0.01),
        "wide.weight": chance.uniform(-40, 40, 64),
    }
    return {name: scale * value for name, value in plain.items()}


def enhanced() -> object:
    steps, chance = np.arange(STEPS), np.random.default_rng(4)
    return EnhancedGradientAnalyzer().analyze_gradients(
        histories(), CHAIN, 2 * 0.93 ** np.minimum(steps, 30) + chance.normal(0, 0.01, STEPS),
        validation_loss=2 * 0.95 ** np.minimum(steps, 20) + 0.002 * steps,
        learning_rate=np.where(steps < 40, 0.1, 0.01), update_ratios=np.exp(chance.normal(-7, 0.5, (STEPS, 5))),
        unit_activity={"net.1.a": 0.05, "head": 0.9}, step_seconds=np.linspace(0.1, 0.2, STEPS),
    )  # fmt: skip


def animated() -> object:
    animator = GradientFlowAnimator()
    for step in range(12):
        animator.record_step(step, {one.layer_name: float(one.gradient_norms[5 * step]) for one in histories()})
    heatmaps = {
        scale: animator.to_ascii_animation(scale=scale, order=order, step_labels=step_labels, max_columns=columns)
        for scale, order, step_labels, columns in (
            ("frame", "name", False, None), ("layer", "execution", True, None), ("run", "name", True, 5),
            ("log", "name", False, 7),
        )
    }  # fmt: skip
    return {"summary": animator.summary_report(), "heatmaps": heatmaps, "last": animator.frames()[-1]}


RECORDS: dict[str, Callable[[], object]] = {
    "flow": lambda: GradientFlowVisualizer().generate_visualization(
        histories(), STEPS, CHAIN, unit_activity={"net.1.a": 0.05}
    ),
    "enhanced": enhanced,
    "animator": animated,
    "weight_distribution": lambda: WeightAnalyzer.analyze_weight_distribution(weights()),
    "weight_health": lambda: {name: WeightAnalyzer.assess_weight_health(value) for name, value in weights().items()},
    "weight_drift": lambda: WeightAnalyzer.analyze_weight_drift(weights(), weights(1.25)),
    "explosion": lambda: WeightAnalyzer.detect_gradient_explosion(weights(), 1.0),
}


@pytest.mark.parametrize("name", RECORDS)
def test_of_given_numbers(name: str) -> None:
    assert_as_before(GOLDEN / f"{name}.json", text_of(RECORDS[name]()))
