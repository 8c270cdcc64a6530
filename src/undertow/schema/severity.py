"""How bad a finding is, and how well a run is: one scale each for the whole product."""

from collections.abc import Iterable
from enum import StrEnum


class Severity(StrEnum):
    """From a remark to a lost run. `moderate` and above is an alarm: act."""

    INFO = "info"
    MILD = "mild"
    MODERATE = "moderate"
    SEVERE = "severe"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return _SEVERITY_ORDER.index(self)

    @property
    def is_alarm(self) -> bool:
        return self.rank >= Severity.MODERATE.rank


_SEVERITY_ORDER = list(Severity)


class Health(StrEnum):
    HEALTHY = "healthy"
    MINOR = "minor"
    PROBLEMS = "problems"
    CRITICAL = "critical"


_HEALTH_OF = {
    Severity.INFO: Health.HEALTHY,
    Severity.MILD: Health.MINOR,
    Severity.MODERATE: Health.PROBLEMS,
    Severity.SEVERE: Health.PROBLEMS,
    Severity.CRITICAL: Health.CRITICAL,
}


def worst_of(severities: Iterable[Severity]) -> Severity:
    return max(severities, key=lambda severity: severity.rank, default=Severity.INFO)


def health_of(severities: Iterable[Severity]) -> Health:
    """Health follows the worst finding; no finding is healthy."""
    return _HEALTH_OF[worst_of(severities)]
