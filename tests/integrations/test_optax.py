"""JAX with optax, the real packages, against the same training counted by hand in numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undertow.measure.statistics import statistics
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


@pytest.mark.parametrize("mean", [True, False])
def test_micro_batches_make_one_step(mean: bool, tmp_path: Path) -> None:
    from undertow.integrations.optax import watched

    batches = np.random.default_rng(1).standard_normal((8, 16, 4)).astype(np.float32)
    weights = np.full(4, 0.5, np.float32)
    several = optax.MultiSteps(chain(), 4, use_grad_mean=mean)
    with watched(several, run_dir=tmp_path / "run", every=1, quiet=True) as optimizer:
        params = {"kernel": jax.numpy.asarray(weights)}
        state = optimizer.init(params)
        step = jax.jit(lambda gradients, state, params: optimizer.update({"kernel": gradients}, state, params))
        norms, moves = [], []
        for four in (batches[:4], batches[4:]):
            gradients = [2 * (batch @ weights - batch.sum(1)) @ batch / 16 for batch in four]
            whole = np.mean(gradients, 0) if mean else np.sum(gradients, 0)
            norms.append(float(np.linalg.norm(whole)))
            for gradient in gradients:
                updates, state = step(gradient, state, params)
                params = optax.apply_updates(params, updates)
            moves.append(float(np.linalg.norm(np.asarray(params["kernel"]) - weights)))
            weights = np.asarray(params["kernel"])
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == [0, 1]
    assert run.series("gradient_norm", "kernel") == pytest.approx(norms, rel=1e-5)
    assert run.series("update_norm", "kernel") == pytest.approx(moves, rel=1e-4)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_the_kernel_measures_what_the_reference_does(scale: float) -> None:
    torch = pytest.importorskip("torch")
    from undertow.integrations import optax_kernel
    from undertow.measure.kernels.reference import ReferenceKernel
    from undertow.measure.partials import Moment

    random = np.random.default_rng(1)
    arrays = [(random.standard_normal(size) * scale + scale / 2).astype(np.float32) for size in (1, 7, 1024, 5000)]
    arrays.append(np.array([np.nan, np.inf, -np.inf, 0.0, 2.0 * scale, -scale], np.float32))
    arrays += [np.zeros(3, np.float32), np.full(4, np.nan, np.float32), np.zeros(0, np.float32)]
    sizes = np.array([array.size for array in arrays])
    traced = jax.jit(optax_kernel.trace)([jax.numpy.asarray(array) for array in arrays])
    ours = optax_kernel.partials(jax.tree.map(np.asarray, traced), sizes)
    theirs = ReferenceKernel().measure([torch.from_numpy(array) for array in arrays])
    assert np.array_equal(ours.exponents, theirs.exponents)
    exact = [Moment.COUNT, Moment.NAN, Moment.POSITIVE_INFINITY, Moment.NEGATIVE_INFINITY, Moment.ZERO]
    exact += [Moment.MINIMUM, Moment.MAXIMUM]
    assert np.array_equal(ours.moments[:, exact], theirs.moments[:, exact], equal_nan=True)
    assert np.allclose(ours.sketches, theirs.sketches, rtol=1e-4, atol=1e-4 * scale)
    first, second = statistics(ours), statistics(theirs)
    assert np.allclose(first, second, rtol=2e-4, atol=1e-5 * scale, equal_nan=True)


def test_directions_are_those_of_the_whole_arrays(tmp_path: Path) -> None:
    from undertow.integrations.optax import watched

    size, rate = 20_000, 0.1  # far more elements than a sketch has buckets
    start = np.random.default_rng(2).standard_normal(size).astype(np.float32)
    optimizer = watched(
        optax.inject_hyperparams(optax.sgd)(learning_rate=rate), run_dir=tmp_path / "run", every=1, quiet=True
    )
    params, weights = {"w": jax.numpy.asarray(start)}, [start.astype(float)]
    state, gradients = optimizer.init(params), np.random.default_rng(3).standard_normal((3, size))
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update({"w": jax.numpy.asarray(gradient, "float32")}, state, params)
        params = optax.apply_updates(params, updates)
        weights.append(weights[-1] - rate * gradient)
    optimizer.close()

    def cosine(one: np.ndarray, other: np.ndarray) -> float:
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    run = open_run(tmp_path / "run")
    near = 3 / np.sqrt(1024)
    assert run.scalars("lr") == pytest.approx([rate] * 3)
    assert "loss" not in run.scalar_names
    for step, (gradient, after) in enumerate(zip(gradients, weights[1:])):
        assert run.series("update_ratio", "w")[step] == pytest.approx(
            rate * np.linalg.norm(gradient) / np.linalg.norm(weights[step]), rel=1e-4
        )
        assert run.series("update_gradient_cosine", "w")[step] == pytest.approx(1.0, abs=1e-3)
        drift = np.linalg.norm(after - start) / np.linalg.norm(start)
        assert run.series("weight_drift", "w")[step] == pytest.approx(drift, rel=0.1)
        assert run.series("weight_cosine_to_start", "w")[step] == pytest.approx(cosine(after, start), abs=near)
        median = np.median(np.abs(gradient))
        assert run.series("gradient_abs_p50", "w")[step] == pytest.approx(median, rel=0.1)
        if step:
            turn = cosine(gradient, gradients[step - 1])
            assert run.series("gradient_cosine", "w")[step] == pytest.approx(turn, abs=near)
            assert run.series("update_cosine", "w")[step] == pytest.approx(turn, abs=near)


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


ASYNCHRONOUS = """
import faulthandler, sys
faulthandler.dump_traceback_later(100, exit=True)
import jax, jax.numpy as jnp, optax
from undertow.integrations.optax import watched

optimizer = watched(optax.sgd(0.1), run_dir=sys.argv[1], every=1, quiet=True)
params = {"kernel": jnp.full((8, 4), 0.3)}
state = optimizer.init(params)

@jax.jit
def step(params, state, inputs):
    gradients = jax.grad(lambda params: jnp.mean((inputs @ params["kernel"]) ** 2))(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state

key = jax.random.PRNGKey(0)
for _ in range(60):  # nobody looks at a result: steps are given out faster than they are done
    key, other = jax.random.split(key)
    params, state = step(params, state, jax.random.normal(other, (16, 8)))
optimizer.close()
print(params["kernel"].shape)
"""


def test_steps_that_nobody_waits_for_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """An operation of JAX inside of the callback would wait for the step that waits for the callback, for ever."""
    command = [sys.executable, "-c", ASYNCHRONOUS, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert open_run(tmp_path / "run").steps.tolist() == list(range(60))
