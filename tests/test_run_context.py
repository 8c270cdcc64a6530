"""What explains a non-finite value besides itself: how the numbers stood before it, read back from the disk."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow import open_run
from undertow.schema import Evidence, Finding


def explained(folder: Path, training: Training) -> Finding:
    training.run(1, scalars={"loss": math.nan})
    (found,) = [one for one in open_run(write(folder, training)).findings if one.code == "NUM002"]
    return found


@pytest.mark.parametrize("steps", [12, 700])  # of a long run only the ends are read
@pytest.mark.parametrize("is_measured_always", [True, False])
def test_weights_that_had_grown(tmp_path: Path, steps: int, is_measured_always: bool) -> None:
    training = Training().run(steps - 2, weight_max_abs={"second": 0.5})
    training.run(1, weight_max_abs={"second": 5000.0})
    if not is_measured_always:
        training.run(1, streams=("gradient",))
    found = explained(tmp_path / "run", training)
    how = f"the largest weight had grown from 0.5 at step 0 to 5e+03 at step {steps - 2}: the training had diverged"
    assert Evidence("weight_max_abs", None, 5000.0, 0.5, how) in found.evidence
    assert found.remedies[0].id == "lower-the-learning-rate"


def test_a_loss_that_had_grown(tmp_path: Path) -> None:
    training = Training().run(300).run(250, scalars={"loss": 20.0}).run(2, scalars={"loss": 3000.0})
    found = explained(tmp_path / "run", training)
    how = "the loss had grown from 1 at step 0 to 3e+03 at step 550: the training had diverged"
    assert Evidence("loss", None, 3000.0, 1.0, how) in found.evidence


def test_values_as_ever(tmp_path: Path) -> None:
    found = explained(tmp_path / "run", Training().run(600))
    assert not [one for one in found.evidence if "diverged" in one.how]
    assert found.remedies[0].id != "lower-the-learning-rate"
