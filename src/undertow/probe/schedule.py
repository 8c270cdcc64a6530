"""The governor: how often each kind of measurement is taken, so that the whole stays within its budget.

The budget is the larger of a share of the step time and one millisecond. Costs are measured on this very run,
on the training thread and in the background thread (whose Python competes with the training for one lock).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FREE_SECONDS = 1e-3  # a step may always cost this much more
_SAFETY = 0.8  # aim below the budget: costs vary from step to step
_MEMORY = 0.2  # weight of the newest cost in its moving average
_SHARES = {"gradient": 0.5, "weight": 0.3, "activation": 0.2}
_MAX_INTERVAL = 1000  # even a slow measurement is taken once in a while
_LEARNING_STEPS = 2  # the first steps are measured whole: they teach the costs, and show the initialisation


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure in the step that begins now."""

    gradient: bool
    weight: bool
    activation: bool

    @property
    def anything(self) -> bool:
        return self.gradient or self.weight or self.activation


@dataclass(slots=True)
class Governor:
    every: int | None  # None: governed; a number is kept as given
    budget: float = 0.01
    activations: int | bool | None = None  # None: governed; False: never; True or a number: as given
    step_seconds: float = 0.0
    _costs: dict[str, float] = field(default_factory=dict[str, float])
    _intervals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SHARES, 1))
    _added: float = 0.0  # Undertow's seconds since the start
    _total: float = 0.0  # all seconds since the start
    _steps: int = 0

    def plan(self, step: int) -> Plan:
        learning = step < _LEARNING_STEPS
        if self.every is not None:
            gradient = weight = step % self.every == 0
        else:
            gradient = learning or step % self._intervals["gradient"] == 0
            weight = learning or step % self._intervals["weight"] == 0
        if self.activations is False:
            activation = False
        elif self.activations is None:
            activation = learning or step % self._intervals["activation"] == 0
        else:
            activation = step % int(self.activations) == 0
        return Plan(gradient, weight, activation)

    def spent(self, seconds: dict[str, float], step_seconds: float, first: bool) -> None:
        """Account for one step: what each kind of measurement cost in it, and how long it took in all."""
        added = sum(seconds.values())
        if first:  # the first step compiles, warms up and discovers: it says nothing about the others
            self.step_seconds = max(step_seconds - added, 0.0)
            return
        self._steps += 1
        self._added += added
        self._total += step_seconds
        own = max(step_seconds - added, 0.0)
        self.step_seconds += (own - self.step_seconds) * (_MEMORY if self._steps > 1 else 1.0)
        for kind, cost in seconds.items():
            known = self._costs.get(kind)
            self._costs[kind] = cost if known is None else known + (cost - known) * _MEMORY
        if self.every is None or self.activations is None:
            self._set_intervals()

    def background(self, kind: str, seconds: float) -> None:
        """Processor time the background thread spent on one frame of this kind."""
        self._added += seconds
        key = f"{kind}:background"
        known = self._costs.get(key)
        self._costs[key] = seconds if known is None else known + (seconds - known) * _MEMORY

    def _cost(self, kind: str) -> float:
        return self._costs.get(kind, 0.0) + self._costs.get(f"{kind}:background", 0.0)

    def _set_intervals(self) -> None:
        allowed = _SAFETY * max(self.budget * self.step_seconds, FREE_SECONDS) - self._costs.get("always", 0.0)
        allowed = max(allowed, 0.1 * FREE_SECONDS)
        if sum(self._cost(kind) for kind in _SHARES) <= allowed:
            self._intervals = dict.fromkeys(_SHARES, 1)
            return
        interval = {
            kind: min(_MAX_INTERVAL, max(1, math.ceil(self._cost(kind) / (share * allowed))))
            for kind, share in _SHARES.items()
        }
        # Weights and activations are most useful beside the gradients of the same step.
        beat = interval["gradient"]
        self._intervals = {kind: beat * math.ceil(number / beat) for kind, number in interval.items()}

    @property
    def fraction(self) -> float | None:
        """Undertow's share of the time the training would take without it; None before it is known."""
        own = self._total - self._added
        return self._added / own if self._steps and own > 0 else None

    @property
    def seconds_per_step(self) -> float | None:
        return self._added / self._steps if self._steps else None
