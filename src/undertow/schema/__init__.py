"""The vocabulary of Undertow: plain data, no torch, no input or output.

The records and enums of `undertow.schema.seeds` are importable from here as well, when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from undertow.schema.seeds import *  # noqa: F403


def __getattr__(name: str) -> Any:
    import importlib

    seeds = importlib.import_module("undertow.schema.seeds")
    if name in seeds.__all__:
        return getattr(seeds, name)
    raise AttributeError(f"module 'undertow.schema' has no attribute {name!r}")
