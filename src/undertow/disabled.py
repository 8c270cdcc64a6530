"""What `watch` returns when UNDERTOW_DISABLED is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from undertow.errors import UndertowError
from undertow.schema.facts import RunStatus
from undertow.schema.findings import Finding
from undertow.watch import Watch

if TYPE_CHECKING:
    from undertow.run import Run


class DisabledWatch(Watch):
    """Accepts everything, does nothing."""

    def __init__(self) -> None:
        self.closed = True

    @property
    def run(self) -> Run:
        raise UndertowError("Undertow is disabled, so there is no run", way_out="Unset UNDERTOW_DISABLED")

    @property
    def findings(self) -> list[Finding]:
        return []

    def log(self, **scalars: float) -> None:
        pass

    def on_finding(self, callback: Callable[[Finding], object]) -> None:
        pass

    def close(self, status: RunStatus = RunStatus.FINISHED, message: str = "") -> None:
        pass

    def __repr__(self) -> str:
        return "<undertow.Watch disabled>"
