"""What users have in their hands is understood, or refused in words that help."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from undertow import (
    EnhancedGradientAnalyzer,
    GradientFlowAnimator,
    GradientFlowVisualizer,
    GradientHistory,
    WeightAnalyzer,
    gradient_alerts,
)
from undertow.schema import ColorScheme, InputError


def model_with_gradients() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[1].bias.requires_grad_(False)
    model(torch.ones(5, 3)).sum().backward()
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    return model


@pytest.mark.parametrize(
    "given",
    [lambda model: model, lambda model: model.named_parameters(), lambda model: dict(model.named_parameters())],
    ids=["module", "named_parameters", "mapping"],
)
def test_parameters_stand_for_their_gradients(given: Callable[[nn.Module], Any]) -> None:
    model = model_with_gradients()
    animator = GradientFlowAnimator()
    animator.record_step(0, given(model))
    layers = {layer.name: layer for layer in animator.frames()[0].layers}
    assert set(layers) == {"0.weight", "0.bias", "1.weight", "unused"}  # a frozen one is left out
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert layers[name].grad_norm == pytest.approx(float(parameter.grad.norm()))
    assert layers["unused"].presence == "missing"
    explosion = WeightAnalyzer.detect_gradient_explosion(given(model), 1e-6)
    listed = {layer.layer_name: layer.gradient_norm for layer in explosion.exploding_layers}
    assert listed == {name: pytest.approx(layers[name].grad_norm) for name in ("0.weight", "0.bias", "1.weight")}


def test_parameters_without_a_gradient_are_refused() -> None:
    model = nn.Linear(2, 2)
    for given in (model, model.named_parameters(), {"w": model.weight}, {"w": torch.ones(2, requires_grad=True)}):
        with pytest.raises(InputError, match=r"no parameter has a gradient.*backward\(\)"):
            GradientFlowAnimator().record_step(0, given)
    with pytest.raises(InputError, match="no parameter has a gradient"):
        WeightAnalyzer.detect_gradient_explosion(model, 1.0)


def test_weights_come_in_every_form() -> None:
    model = nn.Linear(3, 2)
    weight = model.weight.detach().numpy()
    forms: list[Any] = [model, model.named_parameters(), model.state_dict(), {"weight": weight, "bias": model.bias}]
    reports = [WeightAnalyzer.analyze_weight_distribution(form) for form in forms]
    assert all(report == reports[0] for report in reports)
    assert [layer.layer_name for layer in reports[0].layer_analyses] == ["weight", "bias"]


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        (np.ones(5), [5]),
        (np.ones((3, 4)), [12]),
        (torch.ones(2, 2), [4]),
        ([1.0, 2.0], [2]),
        ([[1.0, 2.0], [3.0]], [2, 1]),
        ([np.ones(2), torch.ones(3)], [2, 3]),
        (np.float64(3.0), [1]),
    ],
)
def test_an_array_is_one_tensor_and_a_list_of_arrays_several(given: Any, counts: list[int]) -> None:
    report = WeightAnalyzer.analyze_weight_distribution(given)
    assert [layer.statistics.count for layer in report.layer_analyses] == counts


def test_settings_may_be_a_mapping_and_colours_as_on_the_command_line() -> None:
    given = GradientFlowVisualizer({"temporal_window": 7, "color_scheme": "colour-blind"}).config
    assert (given.temporal_window, given.color_scheme) == (7, ColorScheme.COLOR_BLIND)
    named = EnhancedGradientAnalyzer(analysis_depth="Expert", convergence_window=30, stability_threshold=0.5)
    assert (named.analysis_depth, named.convergence_window, named.stability_threshold) == ("Expert", 30, 0.5)


ANIMATOR: Any = GradientFlowAnimator()
ANALYZER: Any = EnhancedGradientAnalyzer
VISUALIZER: Any = GradientFlowVisualizer
WEIGHTS: Any = WeightAnalyzer


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ANIMATOR.to_ascii_animation(scale="lin"), "scale is 'lin'. Legal values: frame, layer, run, log"),
        (lambda: ANIMATOR.to_ascii_animation(order=3), "order is 3. Legal values: name, execution"),
        (lambda: VISUALIZER({"window": 3}), "no setting 'window'.*temporal_window"),
        (lambda: VISUALIZER("wide"), "the configuration is 'wide'.*temporal_window"),
        (lambda: VISUALIZER({"temporal_window": "many"}), "GradientVisualizationConfig.*temporal_window"),
        (lambda: VISUALIZER({"color_scheme": "pink"}), "pink"),
        (lambda: VISUALIZER().generate_visualization([0.5, 0.4]), "no histories.*{'fc1': \\[0.5, 0.4\\]}"),
        (lambda: ANALYZER().analyze_gradients([[0.5, 0.4]]), "no histories"),
        (lambda: gradient_alerts([0.1]), "no histories"),
        (lambda: ANALYZER(depth="deep"), "depth is 'deep'. Legal values: Basic, Standard, Comprehensive, Expert"),
        (lambda: WEIGHTS.analyze_weight_distribution("model.pt"), "no tensors in 'model.pt'. Give a module"),
        (lambda: WEIGHTS.analyze_weight_distribution(None), "no tensors in None"),
        (lambda: WEIGHTS.detect_gradient_explosion([[1.0]], "5"), "threshold is '5'"),
        (lambda: ANIMATOR.record_step("one", {}), "step is 'one'"),
        (lambda: ANIMATOR.record_step(math.nan, {}), "step is nan"),
        (lambda: ANIMATOR.record_step(0, 3), "no tensors in 3"),
        (lambda: ANIMATOR.with_vanishing_threshold("low"), "threshold is 'low'"),
        (lambda: ANIMATOR.record_step(0, [("a", [1.0]), ("a", [2.0])]), "layer 'a' is given twice"),
    ],
)
def test_refused_with_the_way_out(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_a_history_takes_its_buffers_as_arguments() -> None:
    history = GradientHistory("a", 2, None, [1.0, 2.0, 3.0], step_numbers=[0, 1, 2])  # type: ignore[arg-type]
    assert (list(history.gradient_norms), list(history.step_numbers)) == ([2.0, 3.0], [1, 2])
