"""How bad an explosion is, what to do about the layer, and what to do about the network always agree."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from undertow import WeightAnalyzer
from undertow.components.explosion import ACTIONS, ADVICE, SEVERITIES, _median_of_others
from undertow.schema import GradientExplosionAnalysis

NORMS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.0, 1e3, 1e6, math.nan, math.inf]) | st.floats(0, 1e4), max_size=12)


def explosion(norms: list[float], threshold: float = 1.0) -> GradientExplosionAnalysis:
    return WeightAnalyzer.detect_gradient_explosion([[norm] for norm in norms], threshold)


def rank(severity: object) -> int:
    return SEVERITIES.index(severity)  # type: ignore[arg-type]


@settings(max_examples=300, deadline=None)
@given(NORMS, st.sampled_from([0.1, 1.0, 5.0, 100.0]))
@example([1.0, 1000.0], 5.0)
@example([1e6] * 10, 1.0)
def test_severity_action_and_mitigation_agree(norms: list[float], threshold: float) -> None:
    result = explosion(norms, threshold)
    for layer in result.exploding_layers:
        assert rank(layer.severity) <= rank(result.overall_severity)
        if math.isfinite(layer.gradient_norm):
            assert layer.recommended_action.endswith(ACTIONS[layer.severity])
            times = layer.gradient_norm / threshold
            assert rank(layer.severity) >= sum(times > limit for limit in (2, 5, 10))
        else:
            assert layer.severity == "Critical"
    for severity, sentences in ADVICE.items():
        given = all(one in result.mitigation_recommendations for one in sentences)
        assert given is (rank(severity) <= rank(result.overall_severity))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=8), st.floats(1.0, 1e6))
def test_a_larger_norm_is_never_less_severe(others: list[float], factor: float) -> None:
    small, large = (explosion([*others, 2.0 * times]) for times in (1.0, factor))
    (before,), (after,) = ([one for one in found.exploding_layers if one.layer_index == len(others)]
                           for found in (small, large))  # fmt: skip
    assert rank(before.severity) <= rank(after.severity)


def test_the_layer_itself_is_not_its_own_measure() -> None:
    (layer,) = explosion([1.0, 1000.0], 500.0).exploding_layers
    assert layer.severity == "Critical"  # a thousand times the only other one; the median of both would say twice


def test_the_median_is_that_of_the_others() -> None:
    chance = np.random.default_rng(0)
    for count in range(2, 30):
        norms = chance.integers(1, 6, count).astype(float)
        for place, norm in enumerate(norms):
            expected = float(np.median(np.delete(norms, place)))
            assert _median_of_others(norm, np.sort(norms)) == expected
    assert _median_of_others(3.0, np.array([3.0])) == 0


def test_absolute_size_counts_where_all_explode_alike() -> None:
    result = explosion([1e6] * 10)
    assert {layer.severity for layer in result.exploding_layers} == {"Critical"}
    assert result.overall_severity == "Critical"
    mild = explosion(list(np.full(10, 1.5)))
    assert {layer.severity for layer in mild.exploding_layers} == {"Low"}
