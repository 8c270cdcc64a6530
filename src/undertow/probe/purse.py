"""What a step has cost so far, by kind of measurement."""

from __future__ import annotations

import time

_now = time.perf_counter


class Purse:
    """`with purse.always:` around a tap, `with purse.gradient:` around a part of it; a part's time is its own."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.always = _Stopwatch(self, "always")
        self.gradient = _Stopwatch(self, "gradient")
        self.weight = _Stopwatch(self, "weight")
        self.activation = _Stopwatch(self, "activation")
        self.signal = _Stopwatch(self, "signal")

    def take(self) -> dict[str, float]:
        """What has been spent since the last time."""
        seconds, self.seconds = self.seconds, {}
        parts = sum(spent for kind, spent in seconds.items() if kind != "always")
        seconds["always"] = max(0.0, seconds.get("always", 0.0) - parts)
        return seconds

    def add(self, kind: str, seconds: float) -> None:
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds


class _Stopwatch:
    """A context manager that is made once: in a small model's step every microsecond counts."""

    __slots__ = ("_began", "_kind", "_purse")

    def __init__(self, purse: Purse, kind: str) -> None:
        self._purse, self._kind, self._began = purse, kind, 0.0

    def __enter__(self) -> None:
        self._began = _now()

    def __exit__(self, *error: object) -> None:
        seconds = self._purse.seconds
        seconds[self._kind] = seconds.get(self._kind, 0.0) + _now() - self._began
