"""`undertow.watch`: a handle on a live training, or one that does nothing where none can be watched."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from undertow.errors import write_stderr
from undertow.probe.torch_version import require_torch, too_old, without_lock
from undertow.recording.watch_handle import NullWatch, Watch
from undertow.schema import Finding
from undertow.settings import Settings

if TYPE_CHECKING:
    from undertow.probe.arguments import Models, Optimizers

_command_watch: Watch | None = None  # the one that `undertow run` holds over a whole script


def watch(
    model: Models = None,
    optimizer: Optimizers = None,
    run_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    every: int | str | None = None,
    budget: float | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    activations: bool | int | str | None = None,
    on_critical: str | Callable[[Finding], object] | None = None,
    quiet: bool | None = None,
    **more: Any,
) -> Watch:
    """Watch a training from here on; the loop itself stays as it is.

    Without a model, Undertow finds the models whose parameters the optimizers of this process hold.
    Several models are given as a list, or as a dictionary of names. The handle is also a context manager
    and closes itself at exit. See `Settings` for what the other arguments mean.
    """
    settings = Settings.resolve(
        run_dir=run_dir,
        name=name,
        every=every,
        budget=budget,
        include=include,
        exclude=exclude,
        activations=activations,
        on_critical=on_critical,
        quiet=quiet,
        **more,
    )
    if _command_watch is not None and not _command_watch.closed:
        return _command_watch  # the script runs under `undertow run`: one watch is enough
    return _begin(settings, model, optimizer)


def watch_command(settings: Settings) -> Watch:
    """The watch of `undertow run`: over the whole script, whatever it trains."""
    global _command_watch
    _command_watch = _begin(settings, None, None)
    return _command_watch


def _begin(settings: Settings, model: Models, optimizer: Optimizers) -> Watch:
    if settings.disabled:
        return NullWatch("Undertow is disabled", "Unset UNDERTOW_DISABLED")
    require_torch()
    refusals = ((too_old(), "Install a newer torch"), (without_lock(), "Start it with PYTHON_GIL=1"))
    for reason, way_out in refusals:
        if reason is not None:
            write_stderr(f"undertow: {reason}. Nothing is recorded; your training goes on")
            return NullWatch(reason, way_out)
    from undertow.recording.live_watch import begin_watch

    return begin_watch(settings, model, optimizer)


class _CallableModule(types.ModuleType):
    """`undertow.watch` is this module as soon as anything imports it, and the function for everybody else."""

    def __call__(self, *args: Any, **kwargs: Any) -> Watch:
        return watch(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
