"""The switch that a sick program is given: is its fault on, since which step, and how strong."""

from __future__ import annotations

from dataclasses import dataclass

SEVERITIES = ("mild", "clear", "extreme")


@dataclass(frozen=True, slots=True)
class Fault:
    """True when the fault is on at all; `at(step)` when it has begun by that step.

    `strength` is the rung of the program's own ladder: a learning rate, a factor, a share of the labels…
    """

    on: bool
    strength: float = 0.0
    onset: int = 0

    def __bool__(self) -> bool:
        return self.on

    def at(self, step: int) -> bool:
        return self.on and step >= self.onset
