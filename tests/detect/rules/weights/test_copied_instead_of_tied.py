"""WGT006: a weight that was meant to be tied was copied."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.engine.registry import conditions_of

CONDITIONS = conditions_of("WGT006")


def test_a_copy_in_place_of_a_tied_weight() -> None:
    training = stack(CONDITIONS, "table:Embedding", "0:Linear", "head:Linear")
    norms = {"table.weight": 1.5, "0.weight": 2.0, "head.weight": 1.5}
    training.run(2, weight_norm=norms, update_norm=0.0, weight_drift=0.01)
    assert training.findings()[0].layers == ("head.weight", "table.weight")


@pytest.mark.parametrize(("rate", "codes"), [(1e-3, ["WGT006"]), (2e-4, [])])
def test_a_copy_with_a_rate_of_its_own_is_none_by_mistake(rate: float, codes: list[str]) -> None:
    training = stack(CONDITIONS, "table:Embedding", "0:Linear", "head:Linear")
    norms = {"table.weight": 1.5, "0.weight": 2.0, "head.weight": 1.5}
    rates = {"table.weight": 1e-3, "0.weight": 1e-3, "head.weight": rate}
    measured = {"weight_norm": norms, "update_norm": 0.0, "weight_drift": 0.01, "optimizer_rate": rates}
    training.run(2, streams=("weight", "update", "optimizer"), **measured)
    assert training.codes() == codes


def test_a_copy_that_comes_in_place_of_a_tied_weight_while_training() -> None:
    training = stack(CONDITIONS, "table:Embedding", "head:Linear")
    nan = float("nan")
    for step in range(8):
        head = 1.0 + 0.1 * step if step > 4 else nan
        weights = {"table.weight": 1.0 + 0.1 * step, "head.weight": head}
        training.run(1, weight_norm=weights, update_norm=0.0, weight_drift=0.01)
    (finding,) = training.findings()
    assert (finding.code, finding.first_step) == ("WGT006", 5)


def test_two_random_tables_differ() -> None:
    training = stack(CONDITIONS, "table:Embedding", "head:Linear")
    training.run(2, weight_norm={"table.weight": 1.5, "head.weight": 1.501}, update_norm=0.0, weight_drift=0.01)
    assert training.codes() == []
