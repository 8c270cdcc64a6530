"""From what a user writes, `tensorboard:logs` or an object of their own, to a sink that can be made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from undertow.errors import UndertowError
from undertow.integrations.sinks.feed import Feed, Say
from undertow.integrations.sinks.sink import Sink

# The package that each needs, by the name that pip knows. The others speak HTTP with what Python brings.
_PACKAGES = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "prometheus": "prometheus-client",
    "opentelemetry": "opentelemetry-api",
}


def feed_of(sinks: Sequence[Any], folder: Path, name: str, say: Say) -> Feed:
    """`folder` and `name` are those of the run."""
    return Feed([_named(sink, folder.resolve(), name or folder.name) for sink in sinks], say)


def _named(sink: Any, folder: Path, name: str) -> tuple[str, Callable[[], Sink]]:
    if not isinstance(sink, str):
        return type(sink).__name__, lambda: sink
    kind, _, target = sink.partition(":")
    return kind, partial(_made, kind, target, folder, name)


def _made(kind: str, target: str, folder: Path, name: str) -> Sink:
    """In the thread of the sink: some of these packages take seconds to import."""
    try:
        module = import_module(f"undertow.integrations.sinks.{kind}")
        return module.open_sink(target, folder, name)
    except ImportError as missing:
        package = _PACKAGES.get(kind)
        if package is None or not (missing.name or "").startswith(kind):
            raise
        raise UndertowError(f"{package} is not installed", way_out=f"pip install {package}") from None
