"""How often in a row something was seen that belongs to no single layer."""

from __future__ import annotations


class Looks:
    """Counts looks in a row, and keeps the step of the first of them. For what is seen by layer see `Streak`."""

    __slots__ = ("count", "since")

    def __init__(self) -> None:
        self.count = 0
        self.since = 0

    def hold(self, step: int) -> int:
        """One more look has shown it; how many there are now."""
        if self.count == 0:
            self.since = step
        self.count += 1
        return self.count

    def end(self) -> None:
        self.count = 0
