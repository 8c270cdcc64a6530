"""The governor: how often each kind of measurement is taken, so that the whole stays within its budget.

The budget is the larger of a share of the step time and a floor. Costs are measured on this very run,
on the training thread and in the background thread (whose Python competes with the training for one lock).
"""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from undertow.schema.coverage import EVERY, OFTEN

_REMEMBERED = 0.97  # of what was known before, at each batch
_PRIOR = 4.0  # a measured frame costs so many others, where batches do not tell
_MOST_AT_ONCE = 3.0  # times what is expected of a batch
_TELLING = 1e-4  # how much the shares of measured frames vary, as a variance, for batches to tell


class CostModel:
    """A line fitted to recent batches: seconds per frame, by the share of measured frames."""

    def __init__(self) -> None:
        self._weight = self._share = self._seconds = self._share_share = self._share_seconds = 0.0
        self.of_any = 0.0
        self.of_measured = 0.0  # on top of it

    def note(self, frames: int, measured: int, seconds: float) -> None:
        expected = self.of_any * frames + self.of_measured * measured
        if expected:  # one batch during which the machine had other things to do says nothing
            seconds = min(seconds, _MOST_AT_ONCE * expected)
        share, each = measured / frames, seconds / frames
        self._weight = _REMEMBERED * self._weight + frames
        known = frames / self._weight  # the part of what is known now that is new
        self._share += known * (share - self._share)
        self._seconds += known * (each - self._seconds)
        self._share_share += known * (share * share - self._share_share)
        self._share_seconds += known * (share * each - self._share_seconds)
        variance = self._share_share - self._share**2
        together = self._share_seconds - self._share * self._seconds
        slope = self._seconds / (self._share + 1 / _PRIOR)
        slope += (together - slope * variance) / (variance + _TELLING)
        most = self._seconds / self._share if self._share else self._seconds * _PRIOR
        self.of_measured = min(max(slope, 0.0), most)
        self.of_any = self._seconds - self.of_measured * self._share


FREE_SECONDS = 1e-3  # a step may always cost this much more, unless the user says otherwise
# Aim below the budget: costs vary from step to step, and no clock shows what watching does to caches and to the
# interpreter's lock.
_UNSEEN = 0.35  # of the floor
_SAFETY = 0.9
_MEMORY = 9  # recent costs that count
# Each kind is measured as often as a verdict needs (see `schema.coverage`), for at most so much of the budget; modules
# have what the others leave of that. Then of the rest.
_NEEDED = 0.4  # of the budget there is for that, whatever else it is spent on
_ROUNDS = 0.5  # of that, for modules every so many steps in a long run, too, where ten times would do
_CLAIMS = {"gradient": 0.4, "weight": 0.25}
_SHARES = {"gradient": 0.4, "weight": 0.25, "activation": 0.2}
_SIGNALS = 0.2  # of the budget, at most: they keep to it by themselves (see `signal_collector`), but it is spent, too
_SIGNALS_FROM = 64  # steps; before that they are read so often that it says nothing about later
_SMOOTH = 1 / 32
_SETTLE_EVERY = 8  # steps between two updates of the intervals
_MAX_INTERVAL = 1000  # even a slow measurement is taken once in a while
WHOLE_STEPS = 2  # the first steps are measured whole: they teach the costs, and show the initialisation
SPOT_CHECK_STEPS = frozenset({4, 8, 16, 32, 64, 128})  # measured whole, too, where that is not too expensive:
_SPOT_CHECK_LIMIT = 20.0  # times the budget of one step. What goes wrong soon after the start shows there
_MOST_IN_A_STEP = 4.0  # times the budget of one step: what sampling modules may take in one
_NEAR = 4  # steps with gradients that a round has at least, for modules to be sampled in those only
EARLY_STEPS = 20  # gradients of these show how the model is wired; taken unless that is really expensive
_EARLY_LIMIT = 10.0  # times the budget
_EXACT_EVERY = 20  # steps between two checks of what must hold exactly: that gradients arrive and weights move
_TELLING_COSTS = 3  # of fewer none is believed: everything is slow when it happens first


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
    floor: float = FREE_SECONDS  # seconds
    step_seconds: float = 0.0  # of the training itself, without Undertow
    _costs: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])
    _step_times: deque[float] = field(default_factory=lambda: deque[float](maxlen=_MEMORY))
    _intervals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SHARES, 1))
    _added: float = 0.0  # Undertow's seconds since the start
    _own: float = 0.0  # the training's seconds since the start
    _steps: int = 0
    _warm: bool = False
    _behind: CostModel = field(default_factory=CostModel)  # of the background thread
    _signals: float = 0.0  # seconds of a step that signals take: they come now and then, so this is a mean
    round_seconds: float = 0.0  # that sampling all modules takes, added up over a round
    seconds_for_modules: float = 0.0  # of each step

    def plan(self, step: int) -> Plan:
        if self.every is not None:
            gradient = weight = step % self.every == 0
        else:
            gradient, weight = self._due("gradient", step), self._due("weight", step)
        if self.activations is False:
            activation = False
        elif self.activations is None:
            activation = self._due("activation", step)
        else:
            activation = step % int(self.activations) == 0
        return Plan(gradient, weight, activation)

    def closer(self, plan: Plan) -> Plan:
        """The same with everything that is not too expensive."""
        if self.every is not None or not self.takes_turns:
            return plan
        most = _SPOT_CHECK_LIMIT * self.allowed
        return Plan(*(getattr(plan, kind) or self._cost(kind) <= most for kind in _SHARES))

    @property
    def is_the_same_always(self) -> bool:
        """Whether every step has the same plan, in which modules are not sampled."""
        return self.every == 1 and self.activations is False

    def _due(self, kind: str, step: int) -> bool:
        if step < WHOLE_STEPS:
            return True
        if step in SPOT_CHECK_STEPS and self._cost(kind) <= _SPOT_CHECK_LIMIT * self.allowed:
            return True
        if kind != "activation" and step < EARLY_STEPS and len(self._costs.get(kind, ())) < _TELLING_COSTS:
            return True
        if kind == "gradient" and step < EARLY_STEPS and self._cost(kind) <= _EARLY_LIMIT * self.allowed:
            return True
        # Modules are sampled in turn, unless there is time for all of them in every step.
        return step % self._intervals[kind] == 0 if kind != "activation" else self._intervals[kind] == 1

    @property
    def takes_turns(self) -> bool:
        """Whether modules are sampled in turn."""
        return self.activations is None

    def for_modules(self, plan: Plan) -> tuple[float, float, bool]:
        """Seconds per step that sampling modules may take in the long run; the most it may take in one step; and
        whether this step may sample: beside its gradients, activations say most."""
        gradient, activation = self._intervals["gradient"], self._intervals["activation"]
        is_near = self.every is None and _NEAR * gradient <= activation
        return self.seconds_for_modules, _MOST_IN_A_STEP * self.allowed, plan.gradient or not is_near

    @property
    def allowed(self) -> float:
        """Seconds a step may cost on average."""
        return max(self.budget * self.step_seconds, self.floor)

    def spent(self, seconds: dict[str, float], step_seconds: float, first: bool, steps: int = 1) -> None:
        """Account for one step, or several alike: what each kind of measurement cost, and how long it took in all."""
        if first:  # the first step warms up and discovers: it says nothing about the others
            return
        added = sum(seconds.values())
        own = max(step_seconds - added, 0.0)
        settled = self._steps // _SETTLE_EVERY
        self._steps += steps
        self._added += added
        self._own += own
        self._step_times.append(own / steps)
        self._signals += _SMOOTH * (seconds.get("signal", 0.0) / steps - self._signals)
        governed = self.every is None or self.activations is None
        if governed:
            for kind, cost in seconds.items():
                self._note(kind, cost / steps)
        if self._steps < _SETTLE_EVERY or self._steps // _SETTLE_EVERY > settled:
            self.step_seconds = median(self._step_times)
            if governed:
                self._set_intervals()

    def background(self, seconds: float, frames: int, measured: int) -> None:
        """Processor time that the background thread spent on so many frames; gradients were measured for some."""
        self._added += seconds
        if self._warm:
            self._behind.note(frames, measured, seconds)
        self._warm = True  # the first time opens files and warms up: it says nothing about the others

    def _note(self, key: str, seconds: float) -> None:
        known = self._costs.get(key)
        if known is None:
            known = self._costs[key] = deque(maxlen=_MEMORY)
        known.append(seconds)

    def _cost(self, kind: str) -> float:
        """The lower quartile of recent costs: on a busy machine the clock also counts what other programs do."""
        if kind == "activation" and self.round_seconds:
            return self.round_seconds
        known = sorted(self._costs.get(kind, ()))
        behind = {"always": self._behind.of_any, "gradient": self._behind.of_measured}.get(kind, 0.0)
        return (known[len(known) // 4] if known else 0.0) + behind

    def _set_intervals(self) -> None:
        allowed = min(_SAFETY * self.allowed, self.allowed - _UNSEEN * self.floor) - self._cost("always")
        if self._steps >= _SIGNALS_FROM:
            allowed -= min(self._signals, _SIGNALS * self.allowed)
        allowed = max(allowed, 0.1 * self.floor)
        if sum(self._cost(kind) for kind in _SHARES) <= allowed:
            self._intervals = dict.fromkeys(_SHARES, 1)
            return
        needed = max(allowed, _NEEDED * self.allowed)
        claims = {kind: min(self._cost(kind) / _EXACT_EVERY, most * needed) for kind, most in _CLAIMS.items()}
        due = max(EVERY, self._steps / OFTEN)
        round_seconds = self._cost("activation")
        wanted = min(round_seconds / EVERY, max(round_seconds / due, _ROUNDS * needed))
        claims["activation"] = min(wanted, needed - sum(claims.values()))
        spare = max(1e-9, allowed - sum(claims.values()))
        interval = {
            kind: min(_MAX_INTERVAL, max(1, math.ceil(self._cost(kind) / (claims[kind] + share * spare))))
            for kind, share in _SHARES.items()
        }
        least = self._cost("activation") / _MAX_INTERVAL
        self.seconds_for_modules = max(claims["activation"] + _SHARES["activation"] * spare, least)
        # Weights and activations are most useful beside the gradients of the same step.
        beat = interval["gradient"]
        self._intervals = {kind: beat * max(1, round(number / beat)) for kind, number in interval.items()}

    @property
    def fraction(self) -> float | None:
        """Undertow's share of the time the training would take without it; None before it is known."""
        return self._added / self._own if self._own > 0 else None

    @property
    def seconds_per_step(self) -> float | None:
        return self._added / self._steps if self._steps else None
