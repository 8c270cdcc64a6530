"""Which modules a step samples: all of them in turn, as many at a time as the budget allows.

While hooks are installed, every module costs something, sampled or not. So seconds are saved up over some steps and
spent on as many modules as they pay for, at best on all at once.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from undertow.probe.forward import ModuleReading, ModuleSample

_HOOKED = 3e-6  # seconds that hooks add to every call of a module
_ROUNDED = 1 + 1e-6
_SLOWER = 0.25  # how much of a higher cost is believed at once; a lower one is: nothing else makes things fast


@dataclass(slots=True)
class _Unit:
    """Modules that returned the same tensor and are sampled together; none for the graph of the loss."""

    modules: tuple[int, ...]  # by id
    seconds: float = 0.0

    def note(self, seconds: float) -> None:
        self.seconds = seconds if seconds < self.seconds else self.seconds + _SLOWER * (seconds - self.seconds)


@dataclass(slots=True)
class Rotation:
    _units: list[_Unit] = field(default_factory=list[_Unit])
    _waiting: deque[_Unit] = field(default_factory=deque[_Unit])  # those that this round has not reached yet
    _taken: list[_Unit] = field(default_factory=list[_Unit])  # for the sample of this step
    _idle: set[int] = field(default_factory=set[int])  # modules that did not run when last sampled
    _roots: frozenset[int] = frozenset()
    _all: frozenset[int] = frozenset()
    _saved: float = 0.0  # seconds
    _hooked: float = 0.0  # that hooks take
    seconds: float = 0.0  # that a whole sample takes; 0 before there was one
    _left: float = 0.0  # that those take which this round has not reached yet
    _asked: tuple[int, ModuleSample | None] = (-1, None)  # for which step, and what came of it

    def learn(
        self,
        readings: Mapping[int, ModuleReading],
        known: Iterable[int],
        roots: Iterable[int],
        graph_seconds: float,
        once: float = 0.0,
    ) -> None:
        """After a whole sample. `known`: the watched modules, by id, whether they ran or not. `once`: seconds that any
        sample takes, of however many."""
        self._all = frozenset(known)
        costs = {unit.modules: unit.seconds for unit in self._units}
        self._units = _units({one: reading for one, reading in readings.items() if one in self._all})
        for unit in self._units:
            seconds, unit.seconds = unit.seconds, costs.get(unit.modules, float("inf"))
            unit.note(seconds)
        if graph_seconds:
            self._units.append(_Unit((), graph_seconds))
        self._idle = set(self._all - readings.keys())
        self._roots = frozenset(roots)
        self._hooked = _HOOKED * sum(one.calls for one in readings.values()) + once
        self._waiting, self._taken = deque(self._units), []
        self._saved = 0.0
        self._add_up()

    def next(self, step: int, seconds: float, most: float, may_sample: bool = True) -> ModuleSample | None:
        """What to sample in this step, if anything. It adds `seconds` to what may be spent; `most` is for a single
        step, unless one module alone takes longer."""
        if self._asked[0] != step and self._units:
            self._saved = min(self._saved + seconds, self.seconds)
            self._asked = step, self._choose(most) if may_sample else None
        return self._asked[1]

    def _choose(self, most: float) -> ModuleSample | None:
        if not self._waiting:
            self._waiting.extend(self._units)
            self._add_up()
        if _ROUNDED * self._saved < self._hooked + min(self._left, most):
            return None
        total, self._taken = self._hooked, []
        while self._waiting and (not self._taken or total + self._waiting[0].seconds <= _ROUNDED * self._saved):
            unit = self._waiting.popleft()
            total += unit.seconds
            self._taken.append(unit)
        self._add_up()
        measured = self._idle.union(*(unit.modules for unit in self._taken))
        with_graph = any(not unit.modules for unit in self._taken)
        skipped = frozenset() if with_graph else self._all - measured - self._roots
        share = 1 - len(self._waiting) / len(self._units)
        return ModuleSample(frozenset(measured), skipped, with_graph, share, len(self._taken) == len(self._units))

    def note(self, readings: Mapping[int, ModuleReading], graph_seconds: float) -> float:
        """After a sample of some. Returns the seconds it took in all."""
        if not readings:  # nothing ran at all: as if nothing was sampled
            self._waiting.extendleft(reversed(self._taken))
            self._taken = []
            self._add_up()
            return 0.0
        for unit in self._taken:
            found = [readings[one] for one in unit.modules if one in readings]
            if found:
                unit.note(sum(one.seconds for one in found))
            elif not unit.modules:  # where operations belong is known from when each module ran
                unit.note(graph_seconds + sum(one.seconds for one in readings.values() if not one.is_measured))
            self._idle |= {one for one in unit.modules if one not in readings}
        late = {one: reading for one, reading in readings.items() if one in self._idle and reading.is_measured}
        if late:  # those in no unit did not run when all were sampled
            self._idle -= late.keys()
            placed = {one for unit in self._units for one in unit.modules}
            self._units += _units({one: reading for one, reading in late.items() if one not in placed})
        self._taken = []
        spent = self._hooked + graph_seconds + sum(one.seconds for one in readings.values())
        self._saved -= spent
        self._add_up()
        return spent

    def _add_up(self) -> None:
        """Not at every step: there may be thousands of modules."""
        self.seconds = self._hooked + sum(unit.seconds for unit in self._units) if self._units else 0.0
        self._left = sum(unit.seconds for unit in self._waiting)


def _units(readings: Mapping[int, ModuleReading]) -> list[_Unit]:
    together: dict[int, list[int]] = {}
    for identity, one in readings.items():
        together.setdefault(id(one.source or one), []).append(identity)
    return [_Unit(tuple(modules), sum(readings[one].seconds for one in modules)) for modules in together.values()]
