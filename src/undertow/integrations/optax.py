"""JAX: `optimizer = watched(optax.adam(1e-3))`. Needs no torch.

Statistics are computed on the device, inside the compiled step; only a few numbers of each tensor leave it, through
a callback that nothing waits for.
"""

from __future__ import annotations

import threading
import time
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from undertow.errors import UndertowError
from undertow.integrations.frame_writer import FrameWriter
from undertow.schema.frames import Block, Frame
from undertow.schema.layers import Layer, LayerKind, LayerTable
from undertow.schema.quantities import STREAMS, GradientState
from undertow.settings import Settings

try:
    # By name: a type checker without the packages would take this file for one of them.
    jax: Any = import_module("jax")
    jnp: Any = import_module("jax.numpy")
    optax: Any = import_module("optax")
except ImportError:
    raise UndertowError("JAX or optax is not installed", way_out="pip install jax optax") from None

_MEASURED = ("norm", "rms", "mean", "mean_abs", "std", "min", "max", "max_abs", "zero_fraction", "nonfinite_count")
_AUTO = 10  # steps: there is no budget to keep to, and a look costs some milliseconds on a CPU
_KINDS = {
    "kernel": LayerKind.WEIGHT,
    "weight": LayerKind.WEIGHT,
    "w": LayerKind.WEIGHT,
    "bias": LayerKind.BIAS,
    "b": LayerKind.BIAS,
    "scale": LayerKind.NORM_SCALE,
    "embedding": LayerKind.EMBEDDING,
}


class WatchedState(NamedTuple):
    count: Any
    inner: Any


class Watched(optax.GradientTransformationExtraArgs):
    """An optimizer like the one it is made of, and a handle on the run."""

    writer: FrameWriter

    @property
    def run_dir(self) -> Any:
        return self.writer.folder

    def close(self) -> None:
        """End the run. It also ends with the process."""
        jax.effects_barrier()
        self.writer.close()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def watched(optimizer: Any, **settings: Any) -> Any:
    """Record each update of an optax optimizer. Put it outermost, so that gradients come before clipping.

    Arguments are `run_dir`, `name`, `every` (steps; `auto` is 10 here) and `quiet` of `undertow.watch`. The loss is
    recorded where `update` is given it, as `value=loss`.
    """
    resolved = Settings.resolve(**settings)
    if resolved.disabled:
        return optimizer
    inner = optax.with_extra_args_support(optimizer)
    every = _AUTO if resolved.every == "auto" else int(resolved.every)
    writer = FrameWriter(resolved, str(jax.devices()[0]))
    frames = _Frames(writer)

    def init(params: Any) -> WatchedState:
        return WatchedState(jnp.zeros((), jnp.int32), inner.init(params))

    def update(updates: Any, state: WatchedState, params: Any = None, **extra: Any) -> tuple[Any, WatchedState]:
        moved, new = inner.update(updates, state.inner, params, **extra)
        if params is not None:
            frames.describe(params)

            def look(gradients: Any, moved: Any, params: Any, value: Any) -> None:
                jax.debug.callback(frames.take, state.count, value, *_measured(gradients, moved, params))

            value = jnp.asarray(extra.get("value", jnp.nan), jnp.float32)
            if every == 1:
                look(updates, moved, params, value)
            else:
                jax.lax.cond(state.count % every == 0, look, lambda *_: None, updates, moved, params, value)
        return moved, WatchedState(state.count + 1, new)

    made = Watched(init, update)
    made.writer = writer
    return made


def _measured(gradients: Any, moved: Any, params: Any) -> tuple[Any, Any, Any]:
    """(statistics × tensors) of gradients and of weights after the step; norms of updates and their ratios."""
    after = optax.apply_updates(params, moved)
    change = [_statistics(new - old)[0] for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(params))]
    before = [_statistics(leaf)[0] for leaf in jax.tree.leaves(params)]
    change, before = jnp.stack(change), jnp.stack(before)
    ratio = jnp.where(before > 0, change / jnp.where(before > 0, before, 1), jnp.nan)
    columns = (jnp.stack([_statistics(leaf) for leaf in jax.tree.leaves(tree)], 1) for tree in (gradients, after))
    return (*columns, jnp.stack([change, ratio]))


def _statistics(tensor: Any) -> Any:
    """In the order of `_MEASURED`, of the finite elements. Squares are of scaled values, so none leaves the range."""
    values = jnp.ravel(tensor).astype(jnp.float32)
    finite = jnp.isfinite(values)
    kept = jnp.where(finite, values, 0)
    count = jnp.maximum(finite.sum(), 1)
    missing = values.size - finite.sum()
    largest = jnp.abs(kept).max()
    unit = jnp.where(largest > 0, largest, 1)
    norm = unit * jnp.sqrt(jnp.square(kept / unit).sum())
    norm = jnp.where(missing > 0, jnp.nan, norm)
    mean = kept.sum() / count
    spread = unit * jnp.sqrt(jnp.where(finite, jnp.square((kept - mean) / unit), 0).sum() / count)
    numbers = (
        norm,
        norm / jnp.sqrt(values.size),
        mean,
        jnp.abs(kept).sum() / count,
        spread,
        jnp.where(finite, values, jnp.inf).min(),
        jnp.where(finite, values, -jnp.inf).max(),
        largest,
        (values == 0).mean(),
        missing,
    )
    return jnp.stack([jnp.asarray(number, jnp.float32) for number in numbers])


class _Frames:
    """On the host: from numbers to frames."""

    def __init__(self, writer: FrameWriter) -> None:
        self._writer = writer
        self._count = 0
        self._last = -1
        self._sequence = 0
        self._lock = threading.Lock()

    def describe(self, params: Any) -> None:
        """While the step is traced, which is when names and shapes are known."""
        if self._count:
            return
        leaves = jax.tree_util.tree_flatten_with_path(params)[0]
        self._count = len(leaves)
        self._writer.put(LayerTable.of(_layer(path, leaf) for path, leaf in leaves))

    def take(self, count: Any, value: Any, gradients: Any, weights: Any, updates: Any) -> None:
        step, loss = int(count), float(value)
        with self._lock:
            if step <= self._last or gradients.shape[1] != self._count:
                return  # the same step from another device, or another model
            self._last = step
            self._sequence += 1
            scalars = {"gradient_norm_total": float(np.sqrt(np.square(gradients[0], dtype=np.float64).sum()))}
            if not np.isnan(loss):
                scalars["loss"] = loss
            flags = {"gradient_state": GradientState.PRESENT, "gradient_carried": 0.0, "gradient_optimizer": 0.0}
            blocks = {
                "gradient": _block("gradient", {**_named("gradient", gradients), **flags}, self._count),
                "weight": _block("weight", _named("weight", weights), self._count),
                "update": _block("update", {"update_norm": updates[0], "update_ratio": updates[1]}, self._count),
            }
            self._writer.put(Frame(self._sequence - 1, step, time.time(), scalars, blocks))


def _named(stream: str, values: Any) -> dict[str, Any]:
    return {f"{stream}_{name}": np.asarray(row) for name, row in zip(_MEASURED, values)}


def _block(stream: str, rows: dict[str, Any], count: int) -> Block:
    names = STREAMS[stream].names
    values = np.full((len(names), count), np.nan, np.float32)
    for name, row in rows.items():
        values[names.index(name)] = row
    return Block(stream, np.arange(count, dtype=np.int32), values)


def _layer(path: Any, leaf: Any) -> Layer:
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    parts = [part for part in parts if part != "value"] or ["parameter"]  # Flax wraps arrays in objects with a value
    kind = _KINDS.get(parts[-1], LayerKind.PARAMETER)
    group, shape = ".".join(parts[:-1]), tuple(int(size) for size in leaf.shape)
    count = int(np.prod(shape, dtype=np.int64))
    name = ".".join(parts)
    return Layer(name, kind=kind, parameter_count=count, group=group, shape=shape, dtype=str(leaf.dtype))
