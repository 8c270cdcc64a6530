"""Whether the torch that is installed here can be watched. Imports nothing of it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from typing import Any

from undertow.errors import UndertowError
from undertow.settings import Settings

OLDEST = (2, 6)


def release_of(version: str) -> tuple[int, ...]:
    """2.6.0a0+git1 → 2, 6"""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def too_old() -> str | None:
    """What to say of a torch that is too old; None for one that is not, or that is not there."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    if release_of(version) >= OLDEST:
        return None
    return f"torch {version} is too old: {'.'.join(map(str, OLDEST))} or newer can be watched"


def require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise UndertowError("torch is not installed, so there is nothing to watch", way_out="pip install torch")


class Unwatched:
    """What `watch` returns where it cannot work: accepts everything, does nothing."""

    closed = True
    findings = ()

    def __init__(self, *_: Any, **settings: Any) -> None:
        if not Settings.resolve(**settings).disabled:
            print(f"undertow: {too_old()}. Nothing is recorded; your training goes on", file=sys.stderr, flush=True)

    def log(self, **scalars: float) -> None:
        pass

    def on_finding(self, callback: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> Unwatched:
        return self

    def __exit__(self, *_: object) -> None:
        pass
