"""Tells everybody who wants to know what was found: callbacks, sinks, the terminal, and the training itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from undertow.chronicler.account import Told
from undertow.detect.engine import Change
from undertow.errors import CriticalFindingError
from undertow.schema.findings import Finding
from undertow.schema.severity import Severity
from undertow.settings import Settings
from undertow.show.bars import say

if TYPE_CHECKING:
    from undertow.integrations.sinks.feed import Feed


class Herald:
    """Announces in the background thread; only `critical` is asked by the training's."""

    def __init__(self, settings: Settings, feed: Feed | None, remark: Callable[[str], None]) -> None:
        """`remark` writes a line into the run's journal."""
        self.callbacks: list[Callable[[Finding], object]] = []
        self._settings = settings
        self._feed = feed
        self._remark = remark
        self._warned: set[str] = set()
        self._to_raise: Finding | None = None

    def announce(self, told: Told) -> None:
        if told.change is Change.CLOSED:
            return
        finding = told.finding
        if self._feed is not None:
            self._feed.finding(told.key, finding)
        for callback in self.callbacks:
            self._call(callback, finding)
        if finding.severity is Severity.CRITICAL and finding.code not in self._warned:
            self._warned.add(finding.code)
            action = self._settings.on_critical
            if callable(action):
                self._call(action, finding)
            elif action == "raise":
                self._to_raise = finding
            elif action == "warn" and not self._settings.quiet:
                say(f"undertow: {_line(finding)}")

    def critical(self) -> CriticalFindingError | None:
        """What the user wants raised, once."""
        if self._to_raise is None:
            return None
        finding, self._to_raise = self._to_raise, None
        return CriticalFindingError(_line(finding))

    def _call(self, callback: Callable[[Finding], object], finding: Finding) -> None:
        try:
            callback(finding)
        except Exception as error:  # the user's own function: say so, and go on watching
            self._remark(f"a finding callback raised {type(error).__name__}: {error}")


def feed_sinks(settings: Settings, folder: Path, add_reason: Callable[[str], None]) -> Feed | None:
    """Pass numbers and findings on to where the user wants them besides, in threads of their own."""
    if not settings.sinks:
        return None
    from undertow.integrations.sinks.kinds import feed_of

    def trouble(line: str) -> None:
        add_reason(line)
        if not settings.quiet:
            say(f"undertow: {line}")

    return feed_of(settings.sinks, folder, settings.name or "", trouble)


def _line(finding: Finding) -> str:
    return f"{finding.code} at step {finding.first_step}: {finding.summary}"
