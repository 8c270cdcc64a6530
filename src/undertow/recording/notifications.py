"""Reports findings while training: to callbacks, sinks, the terminal, and the training itself."""

from __future__ import annotations

import os
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
        self._failed: list[Callable[[Finding], object]] = []  # those of which that has been said
        self._settings = settings
        self._facts, self._process = facts, os.getpid()
        self._feed = self._open_sinks(folder)
        self._warned: set[str] = set()
        self._to_raise: Finding | None = None

    def tell(self, changes: Sequence[FindingChange], frames: Sequence[Frame]) -> None:
        """What the recorder made of these frames."""
        for change in changes:
            if change.change is not Change.CLOSED:
                self._announce(change.finding)
        if self._feed is not None:
            self._feed.frames(frames)

    def _announce(self, finding: Finding) -> None:
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
            self._call(callback, finding)

    def _call(self, callback: Callable[[Finding], object], finding: Finding) -> None:
        """A function of the user's, in our thread: not even SystemExit is meant for that, unless the function forks."""
        try:
            callback(finding)
        except BaseException as error:
            if os.getpid() != self._process:
                os._exit(getattr(error, "code", 1) not in (None, 0))
            if callback not in self._failed:
                self._failed.append(callback)
                way_out = 'your training goes on; on_critical="raise" would end it'
                self._trouble(f"a finding callback raised {type(error).__name__}: {error} ({way_out})")
        if os.getpid() != self._process:
            os._exit(0)  # a forked process has this thread alone, and nothing to return to

    def critical(self) -> CriticalFindingError | None:
        """What the user wants raised, once."""
        if self._to_raise is None:
            return None
        finding, self._to_raise = self._to_raise, None
        return CriticalFindingError(_line(finding))

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    def _open_sinks(self, folder: Path) -> Feed | None:
        """Where the user wants numbers and findings besides, each in a thread of its own."""
        if not self._settings.sinks:
            return None
        from undertow.integrations.sinks.kinds import feed_of

        return feed_of(self._settings.sinks, folder, self._settings.name or "", self._trouble)

    def _trouble(self, line: str) -> None:
        """With what is the user's own: said, and in the run."""
        self._facts.add_reason(line)
        if not self._settings.quiet:
            say(f"undertow: {line}")


def _line(finding: Finding) -> str:
    return f"{finding.code} at step {finding.first_step}: {finding.summary}"
