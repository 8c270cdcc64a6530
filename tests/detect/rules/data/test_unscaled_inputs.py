"""DAT001 on frames made by hand: inputs that are not scaled."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.data.unscaled_inputs import UnscaledInputs
from undertow.schema import GraphSource, LayerGraph


def inputs(mean: float, deviation: float, largest: float) -> dict[str, float]:
    return {"input_mean": mean, "input_std": deviation, "input_max_abs": largest}


class TestUnscaledInputs:
    @pytest.mark.parametrize(
        "values", [(1000.0, 1500.0, 5000.0), (130.0, 0.4, 131.0), (8.0, 0.1, 8.4), (0.0, 1e-4, 1e-3)]
    )
    def test_not_scaled(self, values: tuple[float, float, float]) -> None:
        training = stack(UnscaledInputs, "0:Linear", "1:ReLU", "2:Linear").run(2, scalars=inputs(*values))
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.detected_step) == ("DAT001", ("0",), 1)
        assert not training.run(1, scalars=inputs(0.0, 1.0, 3.0)).findings()[0].ongoing

    @pytest.mark.parametrize(
        "values",
        [(0.0, 1.0, 5.0), (0.3, 0.4, 1.0), (5e-4, 0.02, 1.0), (-6.0, 4.0, 16.0), (0.0, 0.02, 0.3), (2.0, 0.0, 2.0)],
    )
    def test_scaled(self, values: tuple[float, float, float]) -> None:
        training = stack(UnscaledInputs, "0:Linear", "1:ReLU", "2:Linear").run(5, scalars=inputs(*values))
        assert training.codes() == []

    def test_one_bad_batch_is_another_fault(self) -> None:
        training = stack(UnscaledInputs, "0:Linear", "2:Linear").run(2, scalars=inputs(0.0, 1.0, 3.0))
        training.run(1, scalars=inputs(0.0, 1e4, 3e4)).run(3, scalars=inputs(0.0, 1.0, 3.0))
        assert training.codes() == []

    @pytest.mark.parametrize("parts", [("0:BatchNorm1d", "1:Linear"), ("0:Conv2d", "1:BatchNorm2d", "2:Linear")])
    def test_a_normalisation_takes_any_scale(self, parts: tuple[str, ...]) -> None:
        assert stack(UnscaledInputs, *parts).run(5, scalars=inputs(100.0, 80.0, 255.0)).codes() == []

    def test_a_residual_stream_goes_around_its_first_normalisation(self) -> None:
        training = stack(UnscaledInputs, "enter:Linear", "norm:LayerNorm", "up:Linear", "leave:Linear")
        around = LayerGraph(training.graph.nodes, (*training.graph.edges, (0, 3)), GraphSource.AUTOGRAD)
        training.engine.set_layers(training.layers, around)
        assert training.run(2, scalars=inputs(100.0, 80.0, 255.0)).codes() == ["DAT001"]

    def test_data_that_turn_odd_later_are_no_matter_of_scaling(self) -> None:
        training = stack(UnscaledInputs, "0:Linear")
        training.run(9, scalars={"input_mean": 0.0, "input_std": 1.0, "input_max_abs": 3.0})
        training.run(9, scalars={"input_mean": 50.0, "input_std": 400.0, "input_max_abs": 3000.0})
        assert training.codes() == []

    @pytest.mark.parametrize(("size", "calls", "found"), [(3e4, 1.0, ["DAT001"]), (3.0, 1.0, []), (3e4, 5.0, [])])
    def test_data_that_enter_elsewhere(self, size: float, calls: float, found: list[str]) -> None:
        """Their size is what the layer makes of them, over its weights."""
        training = stack(UnscaledInputs, "enter:Linear", "time:Linear", "leave:Linear")
        beside = LayerGraph(training.graph.nodes, ((0, 2), (1, 2)), GraphSource.AUTOGRAD)
        training.engine.set_layers(training.layers, beside)
        training.run(
            2, scalars=inputs(0.0, 1.0, 3.0), activation_std={"enter": 1.0, "time": size}, weight_norm=2.8,
            activation_calls={"time": calls},
        )  # fmt: skip
        assert training.codes() == found
        assert [finding.layers for finding in training.findings()] == [("time",)] * len(found)
