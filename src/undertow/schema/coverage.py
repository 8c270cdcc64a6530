"""What a verdict rests on: how often each kind of number was measured, and which rules saw too little of it."""

from dataclasses import dataclass, field

# A layer should be measured ten times in a run, or every 25 steps of a short one.
OFTEN, EVERY = 10, 25
_LATE = 2  # times the distance that this asks for: unseen for longer, anything may have happened


@dataclass(frozen=True, slots=True)
class StepsPerLayer:
    min: int
    median: float


@dataclass(frozen=True, slots=True)
class StreamCoverage:
    """`steps` of the `of` steps that the training took hold a number of any layer.

    Of a number per step, such as the loss, there are no layers.
    """

    steps: int
    of: int
    steps_per_layer: StepsPerLayer | None = None
    largest_gap: int | None = None  # the most steps that any layer went unseen
    layers: int = 0
    layers_seldom: int = 0  # of them, measured too rarely to be judged
    layers_unseen: tuple[str, ...] = ()  # the first of those that were never measured

    @property
    def is_thin(self) -> bool:
        """Too little to conclude anything from silence."""
        if not self.layers:
            return self.steps < seen_enough(self.of)
        return 10 * self.layers_seldom > self.layers  # a branch that seldom runs does not take the verdict away


def seen_enough(steps: int) -> int:
    """Times that something has to be measured in so many steps."""
    return max(1, min(OFTEN, steps // EVERY))


def longest_gap(steps: int) -> float:
    """Steps that something may go unseen in so many."""
    return _LATE * max(EVERY, steps / OFTEN)


@dataclass(frozen=True, slots=True)
class BlindRule:
    """A code that could not be reported, whatever happened, and the setting that would let it."""

    code: str
    why: str
    setting: str


@dataclass(frozen=True, slots=True)
class Coverage:
    layers_watched: int
    layers_skipped: int
    reasons: tuple[str, ...] = ()
    streams: dict[str, StreamCoverage] = field(default_factory=dict[str, StreamCoverage])
    blind: tuple[BlindRule, ...] = ()
