"""Gradient histories: ring buffers, the trend, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from undertow import GradientHistory
from undertow.schema import GradientFlow, InputError


def test_the_oldest_of_every_buffer_falls_out() -> None:
    history = GradientHistory.new("a", 3)
    for step in range(5):
        history.add_gradient_flow(GradientFlow("a", step, float(step), gradient_mean=0.1, gradient_std=0.2))
    assert list(history.gradient_norms) == [2, 3, 4]
    assert list(history.step_numbers) == [2, 3, 4]
    assert len(history.gradient_means) == len(history.gradient_stds) == len(history) == 3


def test_trend_slope() -> None:
    assert GradientHistory.from_norms("a", [1, 2, 4, 3, 5]).get_trend_slope() == pytest.approx(0.9)
    assert GradientHistory.from_norms("b", [0.5, 0.4, 0.3, 0.35, 0.2]).get_trend_slope() == pytest.approx(-0.065)
    assert GradientHistory.from_norms("a", [1, 2]).get_trend_slope() is None
    assert GradientHistory.from_norms("a", [1, 2, np.nan]).get_trend_slope() is None


def test_unordered_steps_are_put_in_order() -> None:
    history = GradientHistory.from_norms(
        "a", torch.tensor([3.0, 1.0, 2.0]), steps=[30, 10, 20], cosines=[0.3, 0.1, 0.2]
    )
    assert list(history.gradient_norms) == [1, 2, 3]
    assert list(history.step_numbers) == [10, 20, 30]
    assert list(history.gradient_cosines) == [0.1, 0.2, 0.3]
    assert history.parameter_count is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norms": [1, 2], "steps": [1]}, "2 values but 1 steps"),
        ({"norms": [1, 2], "steps": [4, 4]}, "step 4 appears more than once"),
        ({"norms": [1, 2], "steps": [0.5, 1]}, "whole numbers"),
        ({"norms": [1, -2]}, "negative"),
        ({"norms": [[1, 2]]}, "one number per step"),
        ({"norms": ["x"]}, "not real numbers"),
        ({"norms": [1, 2], "cosines": [1]}, "values beside them"),
        ({"norms": [1, 2], "sketches": [[1, 2]]}, "sketches have shape"),
        ({"norms": [1], "parameter_count": -1}, "parameter_count"),
    ],
)
def test_bad_input_names_the_layer(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        GradientHistory.from_norms("blocks.3", **arguments)  # pyright: ignore[reportArgumentType]
    assert "blocks.3" in str(caught.value)


def test_an_empty_history_is_allowed() -> None:
    assert len(GradientHistory.from_norms("a", [])) == 0
