"""Whether the torch and the Python that are installed here can be watched. Imports nothing of torch."""

import importlib.metadata
import importlib.util
import re
import sys

from undertow.errors import UndertowError

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


def without_lock() -> str | None:
    """What to say of a Python that runs threads at the same time; None for one that does not."""
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    return "this Python runs without its global lock, which watching relies on"


def require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise UndertowError("torch is not installed, so there is nothing to watch", way_out="pip install torch")
