"""What is wrong, why, and what to change."""

from dataclasses import dataclass, field

from undertow.schema.coverage import Coverage
from undertow.schema.severity import Health, Severity
from undertow.schema.source import SourcePlace


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured number beside the one that was expected, and how it was obtained."""

    quantity: str
    layer: str | None
    value: float | None
    expected: float | None
    how: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something the user can change. `measured` holds the result of a trial, if one was made.

    `when_not` says in which case it is the wrong thing to do.
    """

    id: str
    what: str
    how: str
    risk: str
    measured: str | None = None
    when_not: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    name: str
    severity: Severity
    layers: tuple[str, ...]
    first_step: int
    detected_step: int
    last_step: int
    ongoing: bool
    confidence: float
    summary: str
    evidence: tuple[Evidence, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    follows_from: str | None = None  # code of the finding that brought this one about
    variant: str = ""  # which condition of the code raised it; empty in runs of versions that did not say
    source: tuple[SourcePlace, ...] = ()  # the lines of the user's program, the best first; empty where none is known


@dataclass(frozen=True, slots=True)
class Culprit:
    layer: str | None
    code: str
    why: str


@dataclass(frozen=True, slots=True)
class StepRange:
    first: int | None
    last: int | None
    recorded: int


@dataclass(frozen=True, slots=True)
class Overhead:
    fraction_of_step: float | None
    bytes_per_step: float | None
    milliseconds_per_step: float | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The ranked findings of a run: the first one is the cause to act on.

    `complete` is False where something that a rule needs was hardly measured: `coverage.blind` says what.
    """

    undertow: str
    run: str
    steps: StepRange
    health: Health | None
    culprit: Culprit | None
    story: str
    findings: tuple[Finding, ...] = ()
    overhead: Overhead = field(default_factory=lambda: Overhead(None, None))
    coverage: Coverage = field(default_factory=lambda: Coverage(0, 0))
    complete: bool | None = None
    status: str = ""  # finished, failed, interrupted, killed, running, detached
    message: str = ""  # the last word of a run that failed, was interrupted or detached
