"""OPT006: the validation loss rises while the training loss falls."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tests.detect.building import Training
from tests.detect.courses import falling, follow, training

from undertow.detect.rules.optimisation.overfitting import Overfitting
from undertow.schema import Severity


def validated(validation: Iterable[float], training_loss: Iterable[float]) -> Training:
    run = training(Overfitting)
    for held_out, loss in zip(validation, training_loss):
        for _ in range(9):
            run.run(1, scalars={"loss": loss})
        run.run(1, scalars={"loss": loss, "val_loss": held_out})
    return run


def test_validation_rises_while_training_falls() -> None:
    run = validated([2.0, 1.5, 1.2, 1.1, 1.3, 1.4, 1.5, 1.7], np.linspace(2, 0.1, 8))
    (finding,) = run.findings()
    assert (finding.code, finding.severity, finding.first_step) == ("OPT006", Severity.MODERATE, 39)


def test_both_rising_is_no_overfitting() -> None:
    assert validated([2.0, 1.5, 1.2, 1.1, 1.3, 1.4, 1.5, 1.7], np.linspace(1, 2, 8)).codes() == []


def test_a_single_bad_value_is_silent() -> None:
    assert validated([2.0, 1.5, 1.2, 1.1, 1.9, 1.0, 0.9, 0.9], np.linspace(2, 0.1, 8)).codes() == []


def test_without_validation_it_says_nothing() -> None:
    assert follow(training(Overfitting), falling(200)).codes() == []
