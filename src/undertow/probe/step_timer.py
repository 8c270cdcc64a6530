"""What a step has cost so far, by kind of measurement."""

import time
from collections.abc import Callable


class StepTimer:
    """`with timer.always:` around a tap, `with timer.gradient:` around a part of it; a part's time is its own."""

    def __init__(self) -> None:
        self.always, self.gradient, self.weight = Stopwatch(), Stopwatch(), Stopwatch()
        # What is read rarely counts for long: other programs' time must not be in it, though asking takes longer.
        self.activation, self.signal = Stopwatch(time.thread_time), Stopwatch(time.thread_time)
        self._parts = {
            "gradient": self.gradient,
            "weight": self.weight,
            "activation": self.activation,
            "signal": self.signal,
        }

    def take(self) -> dict[str, float]:
        """What has been spent since the last time."""
        spent = {"always": self.always.seconds}
        self.always.seconds = 0.0
        for kind, part in self._parts.items():
            if part.seconds:
                spent[kind] = part.seconds
                spent["always"] -= part.seconds
                part.seconds = 0.0
        spent["always"] = max(0.0, spent["always"])
        return spent


class Stopwatch:
    """A context manager that is made once: in a small model's step every microsecond counts."""

    __slots__ = ("_began", "_now", "seconds")

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._began = self.seconds = 0.0
        self._now = now

    def __enter__(self) -> None:
        self._began = self._now()

    def __exit__(self, *error: object) -> None:
        self.seconds += self._now() - self._began
