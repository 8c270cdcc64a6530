"""WGT002 on frames made by hand: units with equal weights."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.weights.equal_units import EqualUnits

USUAL = 8**0.5  # the norm of an 8 × 8 matrix of scale 1


class TestEqualUnits:
    def test_equal_rows_that_have_moved(self) -> None:
        training = stack(EqualUnits, "0:Linear", "1:ReLU", "2:Linear")
        training.run(2, weight_row_spread={"0.weight": 1e-8, "2.weight": 0.3}, weight_drift=0.05)
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.first_step) == ("WGT002", ("0.weight",), 0)
        training.run(1, weight_row_spread=0.3, weight_drift=0.05)
        assert not training.findings()[0].ongoing

    def test_columns_of_a_table_that_have_moved_together(self) -> None:
        training = stack(EqualUnits, "0:Embedding", "1:Linear")
        assert training.run(2, weight_row_spread={"0.weight": 0.3, "1.weight": 0.3}, weight_drift=0.05).codes() == []
        training.run(1, weight_row_spread={"0.weight": 1e-8, "1.weight": 0.3}, weight_drift=0.05)
        assert training.findings()[0].layers == ("0.weight",)

    def test_widths_beside_random_means(self) -> None:
        training = stack(EqualUnits, "0:RNN", "1:Linear")  # two matrices of the same shape in one module
        spread = {"0.weight": 0.3, "0.weight_hh_l0": 1e-8, "1.weight": 0.3}
        assert training.run(9, weight_row_spread=spread, weight_drift=0.05).codes() == []
        training.run(9, weight_row_spread=spread | {"0.weight": 1e-8}, weight_drift=0.05)
        assert training.alarms() == ["WGT002"]

    def test_rows_that_had_no_chance_to_part(self) -> None:
        training = stack(EqualUnits, "0:Linear", "1:Linear")
        assert training.run(9, weight_row_spread=1e-8, weight_drift=1e-6).codes() == []

    def test_rows_that_part_by_as_much_as_they_move(self) -> None:
        training = stack(EqualUnits, "0:Linear", "1:Linear")
        norms = {"0.weight": 1.0, "1.weight": 1.1}
        assert training.run(9, weight_row_spread=5e-5, weight_drift=6e-5, weight_norm=norms).codes() == []

    def test_zero_without_a_gradient(self) -> None:
        training = stack(EqualUnits, "0:Linear", "1:Linear")
        training.run(6, weight_norm={"0.weight": 0.0}, gradient_zero_fraction={"0.weight": 1.0}, weight_drift=0.0)
        assert training.findings()[0].layers == ("0.weight",)

    def test_zero_on_purpose_has_a_gradient(self) -> None:
        training = stack(EqualUnits, "0:Linear", "1:Linear")
        training.run(9, weight_norm={"0.weight": 0.0}, gradient_zero_fraction=0.0, weight_drift=0.0)
        assert training.codes() == []

    def test_adapters_on_a_frozen_model_are_left_to_their_gradient(self) -> None:
        training = stack(EqualUnits, "base:Linear", "adapter:Linear", frozen=("base",))
        training.run(9, weight_norm={"adapter.weight": 0.0}, gradient_zero_fraction=1.0, weight_drift=0.0)
        assert training.codes() == []
