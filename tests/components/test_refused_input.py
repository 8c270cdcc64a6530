"""What no analysis could make sense of is refused with a word that helps, and what looks odd but is legal is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import undertow
from undertow import EnhancedGradientAnalyzer, GradientFlowAnimator, GradientHistory, WeightAnalyzer
from undertow.checkpoints import UnreadableCheckpointError
from undertow.schema.seeds.arrays import InputError

MASKED = np.ma.MaskedArray([1.0, 2.0], mask=[False, True])
NAMELESS: Any = None


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: GradientHistory.from_norms("a", [1.0, 2.0], steps=[0, 2**64]), "layer 'a': step .* too large"),
        (lambda: GradientHistory.from_norms("a", MASKED), "layer 'a': the array is masked"),
        (lambda: WeightAnalyzer.analyze_weight_distribution([MASKED], names=["w"]), "layer 'w': the array is masked"),
        (lambda: GradientHistory.from_norms(NAMELESS, [1.0]), "called None"),
        (lambda: EnhancedGradientAnalyzer(threshold=math.nan), "threshold is nan"),
        (lambda: EnhancedGradientAnalyzer(threshold=-0.1), "threshold is -0.1"),
        (lambda: GradientFlowAnimator().with_vanishing_threshold(math.nan), "threshold is NaN"),
        (lambda: GradientFlowAnimator().with_exploding_threshold(math.nan), "threshold is NaN"),
    ],
)
def test_refused(call: Callable[[], object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        call()


def test_masked_weights_are_refused() -> None:
    with pytest.raises(UnreadableCheckpointError, match=r"'w'.*masked"):
        undertow.weights({"w": MASKED})


def test_steps_may_be_large() -> None:
    assert list(GradientHistory.from_norms("a", [1.0, 2.0], steps=[0, 2**53]).step_numbers) == [0, 2**53]


def test_half_a_surrogate_pair_in_a_name_is_kept(tmp_path: Path) -> None:
    animator = GradientFlowAnimator()
    animator.record_step(0, {"\ud800": [1.0]})
    animator.export_json(tmp_path / "a.json")
    animator.export_csv(tmp_path / "a.csv")
    assert "\ud800" in [layer["name"] for layer in json.loads((tmp_path / "a.json").read_bytes())[0]["layers"]]
    assert rb"\ud800" in (tmp_path / "a.csv").read_bytes()


def test_norms_at_the_ends_of_the_range_do_not_warn() -> None:
    found = EnhancedGradientAnalyzer().analyze_gradients({"a": [5e-324, 1e308] * 30, "b": [1e308] * 60})
    assert found.layer_details["a"].gradient_statistics is not None
