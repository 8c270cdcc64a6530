"""Runs to draw: one with every kind of cell, one with hostile names, one with more layers than lines."""

from __future__ import annotations

import numpy as np
import pytest
from tests.browser.runs import deep_run, hostile_run
from tests.cli.conftest import write
from tests.detect.building import Training
from tests.views.test_tiles import written

from undertow.run import Run

STEPS = 60


@pytest.fixture(scope="session")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Six layers: rising, NaN from step 20, zero, no gradient, frozen, falling; nothing sampled from 30 to 39."""
    norms = np.full((STEPS, 6), np.nan, np.float32)
    states, bad = np.zeros_like(norms), np.zeros_like(norms)
    norms[:, 0] = np.geomspace(1e-4, 1, STEPS)
    norms[:, 1] = 0.01
    norms[20:, 1], bad[20:, 1] = np.nan, 3
    norms[:, 2] = 0
    states[:, 3], states[:, 4] = 1, 2
    norms[:, 5] = np.geomspace(1, 1e-4, STEPS)
    for matrix in (norms, states, bad):
        matrix[30:40] = np.nan
    folder = tmp_path_factory.mktemp("pictures") / "marked"
    written(folder, norms, np.arange(STEPS), gradient_state=states, gradient_nonfinite_count=bad)
    return Run(folder)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(hostile_run(tmp_path_factory.mktemp("pictures") / "hostile"))


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pictures") / "deep"
    deep_run(folder, blocks=60, steps=20)
    return Run(folder)


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With a graph and a loss; the gradient of two modules turns NaN at step 12."""
    training = Training().run(12)
    hit = dict.fromkeys(("first", "second"), float("nan"))
    training.run(8, scalars={"loss": float("nan")}, gradient_norm=hit, gradient_nonfinite_count=dict.fromkeys(hit, 4.0))
    return Run(write(tmp_path_factory.mktemp("pictures") / "broken", training))
