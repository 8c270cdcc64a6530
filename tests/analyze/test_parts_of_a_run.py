"""Memory that an analysis takes must not grow with a run: a dashboard asks for it while the run is written."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analyze.test_from_run import Recording

from undertow.analyze import run_series
from undertow.analyze.run_series import NewestSteps, gradient_norms, gradient_sketches, measured_layers
from undertow.components.run_weights import weights_of_run
from undertow.schema import Layer, LayerTable
from undertow.schema.quantities import STORED_SKETCH_WIDTH

AT_ONCE = 4 * 12 * STORED_SKETCH_WIDTH


class Counted(Recording):
    """Knows the largest matrix that was read of it."""

    largest = 0

    def matrix(self, quantity: str, rows: slice | None = None) -> np.ndarray:
        found = super().matrix(quantity, rows)
        self.largest = max(self.largest, found.size)
        return found


def sweep(models: int = 12, steps: int = 100) -> Counted:
    """One layer per model; each model is there for its part of the steps, so newest rows lie all over the run."""
    total = models * steps
    alive = np.repeat(np.eye(models, dtype=bool), steps, axis=0)
    numbers = np.arange(total * models, dtype=np.float64).reshape(total, models)
    sketches = np.where(alive[:, :, None], numbers[:, :, None], np.nan) * np.ones(STORED_SKETCH_WIDTH)
    sketches[np.arange(total) % 3 > 0] = np.nan  # stored rarely
    names = ("gradient_norm", "weight_norm", "weight_mean", "weight_drift")
    matrices = {name: np.where(alive, numbers, np.nan) for name in names}
    matrices["weight_nonfinite_count"] = np.where(alive, 0.0, np.nan)
    matrices["gradient_sketch"] = sketches.reshape(total, -1)
    layers = LayerTable.of(Layer(f"{model}.weight", order=model, parameter_count=4) for model in range(models))
    return Counted(np.arange(total), layers, matrices=matrices)


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_series, "_NUMBERS_AT_ONCE", AT_ONCE)


@pytest.mark.usefixtures("few_at_once")
def test_weights_of_layers_that_come_and_go_are_read_in_parts() -> None:
    run = sweep()
    report = weights_of_run(run, [])
    newest, first = (np.arange(12) + 1) * 100 - 1, np.arange(12) * 100
    assert [one.moments.mean for one in report.tensors] == (newest * 12 + np.arange(12)).tolist()
    assert report.drift is not None
    moved = [one.difference_norm / one.relative for one in report.drift.tensors if one.difference_norm and one.relative]
    assert moved == pytest.approx((first * 12 + np.arange(12))[-len(moved) :])
    assert run.largest <= AT_ONCE


@pytest.mark.usefixtures("few_at_once")
def test_sketches_are_read_in_parts() -> None:
    whole = sweep()
    run = NewestSteps(whole, 1000)
    layers = measured_layers(run)
    series = gradient_norms(run, layers)
    whole.largest = 0
    found = gradient_sketches(run, layers, series)
    assert whole.largest <= AT_ONCE
    for place, layer in enumerate(layers):
        own = run.matrix("gradient_sketch").reshape(1000, 12, -1)[series.recorded[:, place], layer.id]
        rows = np.flatnonzero(np.isfinite(own).all(axis=1))
        assert list(found[layer.path]) == rows.tolist()
        assert all((found[layer.path][row] == own[row]).all() for row in rows.tolist())
