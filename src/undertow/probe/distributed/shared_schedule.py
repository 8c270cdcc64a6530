"""How often to measure, decided by the first rank for all.

Every rank must measure the same steps: shards of a tensor add up only if all of them are measured. So what depends on
the clock is decided by the first rank alone, and takes effect a number of steps later, when all ranks know it. A
rank that learns of it too late leaves a few frames incomplete; nothing waits for it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from undertow.probe.schedule import EARLY_STEPS, SPOT_CHECK_STEPS, WHOLE_STEPS, Governor

_SECONDS_AHEAD = 1.5  # between a decision and its effect, so that all ranks know it
_MERGING = "gradient:merging"
_LEAST_AHEAD, _MOST_AHEAD = 4, 4096  # the same in steps

Announce = Callable[[int, dict[str, int]], None]


@dataclass(slots=True)
class SharedGovernor(Governor):
    """`announce` is given on the rank that decides, and called with the step from which new intervals count."""

    announce: Announce | None = None
    _agreed: list[tuple[int, dict[str, int]]] = field(default_factory=list[tuple[int, dict[str, int]]])
    _planned: int = 0  # the last step that was planned

    def agree(self, from_step: int, intervals: dict[str, int]) -> None:
        """From any thread. Decisions come in order."""
        self._agreed = [*self._agreed[-1:], (from_step, intervals)]

    def merged(self, seconds: float) -> None:
        """Processor time that all ranks' parts of one measured frame took the first rank: the more ranks there are,
        the more rarely they measure."""
        self._added += seconds
        self._note(_MERGING, seconds)

    def _cost(self, kind: str) -> float:
        known = sorted(self._costs.get(_MERGING, ())) if kind == "gradient" else []
        return Governor._cost(self, kind) + (known[len(known) // 4] if known else 0.0)

    def _due(self, kind: str, step: int) -> bool:
        self._planned = step
        if step < WHOLE_STEPS or step in SPOT_CHECK_STEPS or (kind == "gradient" and step < EARLY_STEPS):
            return True
        intervals = next((these for start, these in reversed(self._agreed) if start <= step), None)
        return intervals is None or step % intervals.get(kind, 1) == 0

    @property
    def takes_turns(self) -> bool:
        return False

    def _set_intervals(self) -> None:
        if self.announce is None:
            return
        Governor._set_intervals(self)  # `super` does not know a class with slots
        last = self._agreed[-1] if self._agreed else (0, dict.fromkeys(self._intervals, 1))
        if self._intervals != last[1] and self._planned > last[0]:
            ahead = math.ceil(_SECONDS_AHEAD / max(self.step_seconds, 1e-6))
            from_step = self._planned + min(max(ahead, _LEAST_AHEAD), _MOST_AHEAD)
            intervals = dict(self._intervals)
            self.agree(from_step, intervals)
            self.announce(from_step, intervals)
