"""DAT001, of data that change their size for good while a model trains."""

from __future__ import annotations

import pytest
from tests.detect.building import Training
from tests.detect.stacks import stack

from undertow.detect.rules.data.input_shift import InputShift


def trained() -> Training:
    """Twenty steps of a model behind an embedding, with a loss of about one."""
    training = stack(InputShift, "table:Embedding", "first:Linear", "head:Linear")
    for step in range(20):
        training.run(1, scalars={"loss": 1.0 + 0.01 * (step % 3)}, activation_std={"first": 0.4 + 0.01 * step})
    return training


def go_on(loss: float = 2.0, norm: float = 1.0, steps: int = 8, deviation: float = 6.0) -> list[str]:
    training = trained()
    changed = {"activation_std": {"first": deviation}, "weight_norm": norm}
    return training.run(steps, scalars={"loss": loss}, **changed).alarms()


def test_data_that_become_many_times_as_large() -> None:
    training = trained().run(8, scalars={"loss": 2.0}, activation_std={"first": 6.0})
    (finding,) = training.findings()
    assert (finding.code, finding.layers, finding.first_step) == ("DAT001", ("first",), 20)
    assert "12.1 times" in finding.summary


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": 1.0},  # it does no harm
        {"norm": 9.0},  # the weight has grown
        {"steps": 2},  # a bad batch
        {"deviation": 1.0},  # batches differ
    ],
)
def test_what_is_no_change_of_the_data_for_good(changes: dict[str, float]) -> None:
    assert go_on() == ["DAT001"]
    assert go_on(**changes) == []  # pyright: ignore[reportArgumentType]
