"""What is known of a run besides its numbers: who, when, with what, and how it ended."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from undertow.schema.coverage import StreamCoverage

FORMAT_VERSION = 1


class RunStatus(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"  # the script raised
    INTERRUPTED = "interrupted"  # Ctrl-C or SIGTERM
    DETACHED = "detached"  # Undertow met an internal error and stepped aside


@dataclass(slots=True)
class RunFacts:
    """Stored as `run.json`. Additive only: readers ignore keys they do not know."""

    format: int = FORMAT_VERSION
    undertow: str = ""
    name: str = ""
    status: RunStatus = RunStatus.RUNNING
    created: float = 0.0  # seconds since the epoch
    ended: float | None = None
    process: int = 0
    host: str = ""
    command: list[str] = field(default_factory=list[str])
    python: str = ""
    torch: str = ""
    device: str = ""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    optimizers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    seams: list[int] = field(default_factory=list[int])  # first step after each resume
    steps_seen: int = 0  # optimizer steps counted, recorded or not
    frames_dropped: int = 0  # frames that could not be written (disk full, queue full)
    overhead_fraction: float | None = None  # Undertow's share of the step time, measured
    overhead_seconds_per_step: float | None = None
    bytes_per_step: float | None = None
    layers_skipped: int = 0
    # How often each stream was measured, by who saw every frame: old ones may be thinned out later.
    coverage: dict[str, StreamCoverage] = field(default_factory=dict[str, StreamCoverage])
    health: str | None = None  # of a run that was closed, as it was judged then
    cause: str = ""  # the code and name of its first finding
    reasons: list[str] = field(default_factory=list[str])  # what could not be measured, and why
    message: str = ""  # the last word of a run that failed or detached

    def add_reason(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)
