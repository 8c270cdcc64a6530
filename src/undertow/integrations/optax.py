"""JAX: `optimizer = watched(optax.adam(1e-3))`. Needs no torch.

Statistics are computed on the device, inside the compiled step; only a few numbers of each tensor leave it, through
a callback that nothing waits for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from undertow.errors import UndertowError
from undertow.integrations.frame_writer import FrameWriter
from undertow.settings import Settings

try:
    # By name: a type checker without the packages would take this file for one of them.
    jax: Any = import_module("jax")
    jnp: Any = import_module("jax.numpy")
    optax: Any = import_module("optax")
except ImportError:
    raise UndertowError("JAX or optax is not installed", way_out="pip install jax optax") from None

from undertow.integrations.optax_frames import FrameMaker
from undertow.integrations.optax_kernel import Moves, measurable, trace, trace_norms, trace_sketches

_AUTO = 10  # steps: there is no budget to keep to, and a look costs some milliseconds on a CPU


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

    Around `optax.MultiSteps` a step is one that moves the weights, and its gradient what the micro-batches have made.
    Arguments are `run_dir`, `name`, `every` (steps; `auto` is 10 here) and `quiet` of `undertow.watch`. The loss is
    recorded where `update` is given it, as `value=loss`; the learning rate where `optax.inject_hyperparams` keeps it.
    """
    resolved = Settings.resolve(**settings)
    if resolved.disabled:
        return optimizer
    inner = optax.with_extra_args_support(optimizer)
    adds_up = not getattr(getattr(optimizer.update, "__self__", None), "_use_grad_mean", True)
    every = _AUTO if resolved.every == "auto" else int(resolved.every)
    writer = FrameWriter(resolved, str(jax.devices()[0]))
    frames = FrameMaker(writer)

    def take(*arrays: Any) -> None:
        """As plain arrays from the start: any operation of JAX in here could wait for the step that waits for it."""
        frames.take(*jax.tree.map(np.asarray, arrays))

    def init(params: Any) -> WatchedState:
        return WatchedState(jnp.zeros((), jnp.int32), inner.init(params))

    def update(updates: Any, state: WatchedState, params: Any = None, **extra: Any) -> tuple[Any, WatchedState]:
        moved, new = inner.update(updates, state.inner, params, **extra)
        if params is not None:
            frames.describe(jax.tree_util.tree_flatten_with_path(params)[0])
            scalars = {"loss": extra.get("value"), "lr": _rate_in(new)}
            scalars = {name: jnp.asarray(number, jnp.float32) for name, number in scalars.items() if number is not None}
            count, is_due = state.count, state.count % every == 0
            if isinstance(new, optax.MultiStepsState):
                count = state.inner.gradient_step
                updates = _accumulated(updates, state.inner, adds_up)
                is_due = (new.gradient_step != count) & (count % every == 0)

            def look(gradients: Any, moved: Any, params: Any, scalars: Any) -> None:
                after = optax.apply_updates(params, moved)
                change = jax.tree.map(lambda new, old: new - old, after, params)
                gradients, before, after, change = (
                    measurable(jax.tree.leaves(tree)) for tree in (gradients, params, after, change)
                )
                moves = Moves(trace_norms(before), trace_norms(change), trace_sketches(change))
                jax.debug.callback(take, count, scalars, trace(gradients), trace(after), moves)

            if every == 1 and count is state.count:
                look(updates, moved, params, scalars)
            else:
                jax.lax.cond(is_due, look, lambda *_: None, updates, moved, params, scalars)
        return moved, WatchedState(state.count + 1, new)

    made = Watched(init, update)
    made.writer = writer
    return made


def _accumulated(gradients: Any, state: Any, adds_up: bool) -> Any:
    """What `optax.MultiSteps` has of the micro-batches so far, with this one."""
    share = 1 if adds_up else state.mini_step + 1
    return jax.tree.map(
        lambda gradient, before: before + (gradient if adds_up else (gradient - before) / share),
        gradients,
        state.acc_grads,
    )


def _rate_in(state: Any) -> Any:
    """The learning rate, which optax keeps in its state only under `inject_hyperparams`; None where it does not."""
    try:
        return optax.tree_utils.tree_get(state, "learning_rate")
    except KeyError:  # there are several
        return None
