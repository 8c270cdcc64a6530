"""One robust view of the loss for all rules: where it started, where it is, how noisy it is, where it goes.

How to use it: the engine moves the trend on with every frame and hangs what it knows on the view, so a rule writes

    loss = view.loss
    if loss is None:
        return ()          # no finite loss in this frame
    if loss.rising and loss.level > loss.start: ...

Everything is relative: no field is ever compared with a fixed number in units of the loss, so that multiplying or
shifting the loss changes no verdict. `start`, `level` and `best` are medians, `noise` is the standard deviation of a
single loss around them (from successive differences, so a trend is not noise), `jump` is how many deviations this one
loss lies above the latest level, and `ratio` how many times as large it is (NaN where a loss was not positive).
`slope` is the median slope over the later half of all steps with a 99 % interval that assumes no distribution, so the
time it looks back grows with the run. Losses of optimizers that step in turn (a GAN) are kept apart: `actor` tells
whose loss it is, and all fields speak of the losses of that actor only. Cost: a few microseconds a frame, whatever the
length of the run.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from undertow.schema import Frame

_WINDOW = 9  # losses whose median is the level: a change shows after five
_NOISE_WINDOW = 24
_START = 5  # losses whose median is the start
_BLOCKS = 24  # the whole history in at most so many means; then neighbours merge
_TO_DEVIATION = 1.4826 / math.sqrt(2)  # from the median of absolute differences
_INTERVAL = 2.576  # 99 %
ANOTHER_TRAINING = "another_training"  # a scalar: the optimizers before are gone, and new parameters are trained
LAYERS_REUSED = "layers_reused"  # a scalar beside it: layers stand for other models from now on
_MOST_ACTORS = 4  # more are one optimizer that is made anew again and again


class Loss(NamedTuple):
    """The loss of one step beside the losses of the same actor before it."""

    step: int
    value: float
    actor: int
    actors: int  # how many optimizers step in turn, each with a loss of its own
    seen: int  # losses of this actor so far
    begun: int  # step of the first of them
    first: float  # the very first loss: of weights that no step has changed
    start: float  # median of the first five
    level: float  # median of the latest nine, this one included
    low: float  # smallest and largest of these nine
    high: float
    best: float  # lowest level so far
    best_step: int
    noise: float  # deviation of a single loss; 0 when losses repeat exactly
    jump: float  # deviations of this loss above the level before it, in logarithms where losses are positive
    ratio: float  # this loss over the level before it; NaN when a loss was not positive
    positive: bool  # all losses so far were above zero
    slope: float  # per step, over the later half of the history
    slope_low: float
    slope_high: float
    span: int  # steps the slope covers

    @property
    def rising(self) -> bool:
        return self.slope_low > 0

    @property
    def falling(self) -> bool:
        return self.slope_high < 0

    @property
    def gain(self) -> float:
        """What has been learnt, in deviations of a single loss; below 0 when the loss is higher than at the start."""
        return (self.start - self.level) / max(self.noise, 1e-9 * abs(self.start), 1e-300)

    @property
    def remaining(self) -> float:
        """Level over start for positive losses: 1 is where it began, 0.1 a tenth of it. NaN for others."""
        return self.level / self.start if self.positive and self.start > 0 else math.nan


class _Median:
    """The median of the latest values, kept sorted."""

    __slots__ = ("ordered", "recent", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.recent: deque[float] = deque()
        self.ordered: list[float] = []

    def add(self, value: float) -> None:
        recent, ordered = self.recent, self.ordered
        if len(recent) == self.size:
            del ordered[bisect_left(ordered, recent.popleft())]
        recent.append(value)
        insort(ordered, value)

    def get(self) -> float:
        ordered = self.ordered
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


class _ActorLosses:
    """The losses of one actor."""

    def __init__(self) -> None:
        self.count = 0
        self.first = self.start = self.best = math.nan
        self.begun = self.best_step = self.last_step = -1
        self.last = self.last_log = math.nan
        self.positive = True
        self.levels = _Median(_WINDOW)
        self.differences = _Median(_NOISE_WINDOW)
        self.log_differences = _Median(_NOISE_WINDOW)
        self.blocks: list[tuple[float, float]] = []  # (step, mean loss)
        self.block_size = 1
        self.filling: list[tuple[int, float]] = []
        self.slope = (math.nan, math.nan, math.nan, 0)

    def add(self, step: int, value: float, actor: int, actors: int) -> Loss:
        level_before = self.levels.get() if self.count else value
        self.positive = self.positive and value > 0
        logarithm = math.log(value) if self.positive else math.nan
        jump, ratio = self._surprise(value, logarithm, level_before)
        if self.count:
            self.differences.add(abs(value - self.last))
            if self.positive:
                self.log_differences.add(abs(logarithm - self.last_log))
        self.last, self.last_log, self.last_step = value, logarithm, step
        self.count += 1
        self.levels.add(value)
        level = self.levels.get()
        if self.count == 1:
            self.first, self.begun = value, step
        if self.count <= _START:
            self.start = level
        if self.count <= _START or level < self.best:
            self.best, self.best_step = level, step
        self._remember(step, value)
        low, slope, high, span = self.slope
        ordered = self.levels.ordered
        return Loss(
            step, value, actor, actors, self.count, self.begun, self.first, self.start, level, ordered[0], ordered[-1],
            self.best, self.best_step, self._noise(), jump, ratio, self.positive, slope, low, high, span,
        )  # fmt: skip

    def _noise(self) -> float:
        return self.differences.get() * _TO_DEVIATION if self.differences.ordered else 0.0

    def _surprise(self, value: float, logarithm: float, level: float) -> tuple[float, float]:
        """How far above the latest level, against the noise known before this loss."""
        if self.count < _START:
            return 0.0, value / level if self.positive else math.nan
        if self.positive:
            rise = logarithm - math.log(level)
            # Losses that hardly vary make any change look large: five per cent never is.
            return rise / max(self.log_differences.get() * _TO_DEVIATION, 0.05), math.exp(min(rise, 700.0))
        spread = max(
            self._noise(), 0.05 * (self.levels.ordered[-1] - self.levels.ordered[0]), 1e-9 * abs(level), 1e-300
        )
        return (value - level) / spread, math.nan

    def _remember(self, step: int, value: float) -> None:
        self.filling.append((step, value))
        if len(self.filling) < self.block_size:
            return
        size = len(self.filling)
        self.blocks.append((sum(s for s, _ in self.filling) / size, sum(v for _, v in self.filling) / size))
        self.filling = []
        if len(self.blocks) == _BLOCKS:
            pairs = zip(self.blocks[::2], self.blocks[1::2], strict=True)
            self.blocks = [((a + c) / 2, (b + d) / 2) for (a, b), (c, d) in pairs]
            self.block_size *= 2
        self.slope = _slope(self.blocks[-max(8, len(self.blocks) // 2) :])


def _slope(points: list[tuple[float, float]]) -> tuple[float, float, float, int]:
    """Median slope of all pairs (Theil and Sen) with its interval; an infinite one for fewer than six points."""
    count = len(points)
    if count < 6:
        return -math.inf, math.nan, math.inf, 0
    slopes = sorted([(d - b) / (c - a) for (a, b), (c, d) in combinations(points, 2) if c > a])
    if not slopes:
        return -math.inf, math.nan, math.inf, 0
    half_width = _INTERVAL * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low, high = (len(slopes) - half_width) / 2, (len(slopes) + half_width) / 2
    return (
        slopes[max(int(low), 0)] if low >= 0 else -math.inf,
        slopes[len(slopes) // 2],
        slopes[min(math.ceil(high), len(slopes) - 1)] if high <= len(slopes) else math.inf,
        int(points[-1][0] - points[0][0]),
    )


class LossTrend:
    """Takes frames in order and says of each what its loss means; one for all rules of an engine."""

    def __init__(self) -> None:
        self._actors: dict[int, _ActorLosses] = {}
        self._merged = False

    def observe(self, frame: Frame) -> Loss | None:
        """None for a frame without a finite loss, and for a second one of the same step (logged by hand)."""
        value = frame.scalars.get("loss")
        if value is None or not math.isfinite(value):
            return None
        if frame.scalars.get(ANOTHER_TRAINING) == 1:
            self._actors, self._merged = {}, False
        actor = 0 if self._merged else actor_of(frame)
        losses = self._actors.get(actor)
        if losses is None:
            if len(self._actors) == _MOST_ACTORS:
                self._merged, actor = True, 0
                losses = self._actors.get(0) or next(iter(self._actors.values()))
                self._actors = {0: losses}
            else:
                losses = self._actors[actor] = _ActorLosses()
        if frame.step == losses.last_step:
            return None
        return losses.add(frame.step, value, actor, len(self._actors))


def actor_of(frame: Frame) -> int:
    """Which optimizer stepped: the number of its first parameter group, 0 where there is one optimizer only."""
    return _first_group(tuple(frame.scalars))


@lru_cache(maxsize=256)
def _first_group(names: tuple[str, ...]) -> int:
    """Frames of a run have few sets of names."""
    return min([int(name[3:]) for name in names if name[:3] == "lr_" and name[3:].isdigit()], default=0)
