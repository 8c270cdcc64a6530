"""JAX with optax, the real packages, against the same training counted by hand in numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undertow.run import open_run

pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to mend
STEPS, RATE, CLIP = 10, 0.1, 0.5
jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")


def data() -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    return inputs, inputs.sum(1)


def loss_of(params: Any, inputs: Any, targets: Any) -> Any:
    return ((inputs @ params["dense"]["kernel"] + params["dense"]["bias"] - targets) ** 2).mean()


def train(optimizer: Any) -> Any:
    params = {"dense": {"kernel": jax.numpy.full(4, 0.5), "bias": jax.numpy.zeros(())}}
    state = optimizer.init(params)
    optimizer = optax.with_extra_args_support(optimizer)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, *data())
        updates, state = optimizer.update(gradients, state, params, value=loss)
        return optax.apply_updates(params, updates), state

    for _ in range(STEPS):
        params, state = step(params, state)
    return params


def chain() -> Any:
    return optax.chain(optax.clip_by_global_norm(CLIP), optax.sgd(RATE))


def test_numbers_are_those_counted_by_hand(tmp_path: Path) -> None:
    from undertow.integrations.optax import watched

    with watched(chain(), run_dir=tmp_path / "run", every=1, quiet=True) as optimizer:
        params = train(optimizer)
    plain = train(chain())
    assert all(np.array_equal(one, other) for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(plain)))

    run = open_run(tmp_path / "run")
    assert run.status == "finished"
    assert run.layers.paths == ["dense.bias", "dense.kernel"]
    assert run.steps.tolist() == list(range(STEPS))
    inputs, targets = (part.astype(float) for part in data())
    weight, bias = np.full(4, 0.5), 0.0
    for step in range(STEPS):
        error = inputs @ weight + bias - targets
        slope, tilt = 2 * inputs.T @ error / len(error), 2 * error.mean()
        total = np.sqrt(slope @ slope + tilt**2)
        assert run.scalars("loss")[step] == pytest.approx((error**2).mean(), rel=1e-4)
        assert run.scalars("gradient_norm_total")[step] == pytest.approx(total, rel=1e-4)
        assert run.series("gradient_norm", "dense.kernel")[step] == pytest.approx(np.linalg.norm(slope), rel=1e-4)
        assert run.series("gradient_mean", "dense.kernel")[step] == pytest.approx(slope.mean(), rel=1e-3, abs=1e-6)
        assert run.series("gradient_std", "dense.kernel")[step] == pytest.approx(slope.std(), rel=1e-3)
        change = RATE * min(1.0, CLIP / total) * slope
        ratio = np.linalg.norm(change) / np.linalg.norm(weight)
        assert run.series("update_ratio", "dense.kernel")[step] == pytest.approx(ratio, rel=1e-3)
        weight, bias = weight - change, bias - RATE * min(1.0, CLIP / total) * tilt
        assert run.series("weight_norm", "dense.kernel")[step] == pytest.approx(np.linalg.norm(weight), rel=1e-4)


def test_every_so_many_steps(tmp_path: Path) -> None:
    from undertow.integrations.optax import watched

    with watched(chain(), run_dir=tmp_path / "run", every=4, quiet=True) as optimizer:
        train(optimizer)
    assert open_run(tmp_path / "run").steps.tolist() == [0, 4, 8]


def test_extremes_and_what_is_not_finite() -> None:
    from undertow.integrations.optax import _MEASURED, _statistics

    def of(*values: float) -> dict[str, float]:
        return dict(zip(_MEASURED, np.asarray(_statistics(jax.numpy.array(values, "float32"))).tolist()))

    assert of(3e30, -4e30)["norm"] == pytest.approx(5e30)
    assert of(3e-30, 4e-30)["norm"] == pytest.approx(5e-30)
    broken = of(float("nan"), float("inf"), 0.0, 2.0)
    assert broken["nonfinite_count"] == 2
    assert np.isnan(broken["norm"])
    assert (broken["min"], broken["max"], broken["mean"], broken["zero_fraction"]) == (0, 2, 1, 0.25)


def test_a_loss_that_is_not_finite_is_found_without_torch(tmp_path: Path) -> None:
    program = f"""
import sys, jax, optax
from undertow.integrations.optax import watched
optimizer = watched(optax.sgd(50.0), run_dir={str(tmp_path / "run")!r}, every=1, quiet=True)
params = {{"dense": {{"kernel": jax.numpy.ones(4)}}}}
state = optimizer.init(params)
@jax.jit
def step(params, state):
    loss, gradients = jax.value_and_grad(lambda p: (p["dense"]["kernel"] ** 4).sum())(params)
    updates, state = optimizer.update(gradients, state, params, value=loss)
    return optax.apply_updates(params, updates), state
for _ in range(12):
    params, state = step(params, state)
optimizer.close()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
    codes = {finding.code for finding in open_run(tmp_path / "run").diagnose().findings}
    assert {"NUM001", "NUM002"} <= codes
