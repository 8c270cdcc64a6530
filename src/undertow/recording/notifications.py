"""Reports findings while training: to callbacks, sinks, the terminal, and the training itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from undertow.detect.engine import Change, FindingChange
from undertow.errors import CriticalFindingError
from undertow.schema import Finding, Frame, RunFacts, Severity
from undertow.settings import Settings
from undertow.show.bars import say

if TYPE_CHECKING:
    from undertow.integrations.sinks.feed import Feed


class Notifications:
    """Notified in the background thread; only `critical` is called by the training's."""

    def __init__(self, settings: Settings, folder: Path, facts: RunFacts) -> None:
        self.callbacks: list[Callable[[Finding], object]] = []
        self._settings = settings
        self._feed = _open_sinks(settings, folder, facts)
        self._warned: set[str] = set()
        self._to_raise: Finding | None = None

    def tell(self, changes: Sequence[FindingChange], frames: Sequence[Frame]) -> list[str]:
        """What the recorder made of these frames. Returns what went wrong in the user's own functions."""
        troubles: list[str] = []
        for change in changes:
            if change.change is not Change.CLOSED:
                self._announce(change, troubles)
        if self._feed is not None:
            self._feed.frames(frames)
        return troubles

    def _announce(self, change: FindingChange, troubles: list[str]) -> None:
        finding = change.finding
        if self._feed is not None:
            self._feed.finding(finding.variant, finding)
        to_call = list(self.callbacks)
        if finding.severity is Severity.CRITICAL and finding.code not in self._warned:
            self._warned.add(finding.code)
            action = self._settings.on_critical
            if callable(action):
                to_call.append(action)
            elif action == "raise":
                self._to_raise = finding
            elif action == "warn" and not self._settings.quiet:
                say(f"undertow: {_line(finding)}")
        for callback in to_call:
            try:
                callback(finding)
            except Exception as error:  # the user's own function: say so, and go on watching
                troubles.append(f"a finding callback raised {type(error).__name__}: {error}")

    def critical(self) -> CriticalFindingError | None:
        """What the user wants raised, once."""
        if self._to_raise is None:
            return None
        finding, self._to_raise = self._to_raise, None
        return CriticalFindingError(_line(finding))

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()


def _open_sinks(settings: Settings, folder: Path, facts: RunFacts) -> Feed | None:
    """Where the user wants numbers and findings besides, each in a thread of its own."""
    if not settings.sinks:
        return None
    from undertow.integrations.sinks.kinds import feed_of

    def trouble(line: str) -> None:
        facts.add_reason(line)
        if not settings.quiet:
            say(f"undertow: {line}")

    return feed_of(settings.sinks, folder, settings.name or "", trouble)


def _line(finding: Finding) -> str:
    return f"{finding.code} at step {finding.first_step}: {finding.summary}"
