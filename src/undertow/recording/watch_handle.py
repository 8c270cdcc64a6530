"""What a user holds: the same on a live training, and where nothing can be watched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undertow import __version__
from undertow.errors import UndertowError
from undertow.recording.script_error import described
from undertow.run_context import RunContext
from undertow.schema import Diagnosis, Finding, RunFacts, RunStatus, StepRange

if TYPE_CHECKING:
    from undertow.run import Run


class Watch(ABC):
    """A handle on a training. Made by `undertow.watch`."""

    closed: bool

    @property
    def folder(self) -> Path | None:
        """Of the run; None where this process writes none."""
        return None

    @property
    @abstractmethod
    def run(self) -> Run:
        """The run being written, opened for reading."""

    @property
    @abstractmethod
    def findings(self) -> list[Finding]:
        """What has been found so far, ranked."""

    @abstractmethod
    def log(self, **scalars: float) -> None:
        """Record more numbers at the current step. Loss and learning rate are captured without this."""

    @abstractmethod
    def on_finding(self, callback: Callable[[Finding], object]) -> None:
        """Call back, in the background thread, whenever something is found."""

    @abstractmethod
    def diagnose(self) -> Diagnosis:
        """What is wrong as far as seen, where, why, and what to do."""

    @abstractmethod
    def close(self, status: RunStatus = RunStatus.FINISHED, message: str = "") -> None:
        """Stop watching. No hook, thread, file handle or patched function remains. Safe to call twice."""

    def _repr_html_(self) -> str | None:
        """In a notebook: what the run has shown so far. The training is not kept waiting."""
        from undertow.show.notebook.display import html_of_run, run_of_watch

        run = run_of_watch(self)
        return None if run is None else html_of_run(run)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._close_after(kind, error)

    def _close_after(self, kind: type[BaseException] | None, error: object) -> None:
        if kind is None:
            self.close()
        elif issubclass(kind, KeyboardInterrupt):
            self.close(RunStatus.INTERRUPTED)
        else:
            self.close(RunStatus.FAILED, described(error) if isinstance(error, BaseException) else kind.__name__)


class NullWatch(Watch):
    """Accepts everything, does nothing, and says why when it is asked for results."""

    closed = True

    def __init__(self, reason: str, way_out: str) -> None:
        self._reason, self._way_out = reason, way_out

    @property
    def run(self) -> Run:
        raise UndertowError(f"{self._reason}, so there is no run", way_out=self._way_out)

    @property
    def findings(self) -> list[Finding]:
        return []

    def log(self, **scalars: float) -> None:
        pass

    def on_finding(self, callback: Callable[[Finding], object]) -> None:
        pass

    def diagnose(self) -> Diagnosis:
        """Of no steps: without a health, and with the reason."""
        facts = RunFacts(undertow=__version__, status=RunStatus.FINISHED, reasons=[self._reason])
        return RunContext(Path(), facts).diagnose([], "", StepRange(None, None, 0), facts.status)

    def close(self, status: RunStatus = RunStatus.FINISHED, message: str = "") -> None:
        pass

    def __repr__(self) -> str:
        return f"<undertow.Watch of nothing: {self._reason}>"
