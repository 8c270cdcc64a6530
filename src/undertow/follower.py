"""The watch of every rank but the first: measures, and sends what it measures to the rank that writes the run."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from undertow.errors import CriticalFindingError, UndertowError
from undertow.probe.arguments import check_globs
from undertow.probe.distributed.follower import Follower
from undertow.probe.distributed.topology import RankPlace
from undertow.probe.mailbox import Mailbox
from undertow.probe.readings import Note
from undertow.probe.step import StepMachine
from undertow.probe.subjects import Subjects
from undertow.ranks import shared_governor, within
from undertow.schema.facts import RunStatus
from undertow.schema.findings import Diagnosis, Finding
from undertow.settings import Settings
from undertow.store.journal import Journal
from undertow.watch import Watch, _open, _say, _trace

if TYPE_CHECKING:
    from undertow.run import Run

_PATIENCE = 30.0


class FollowerWatch(Watch):
    """Has no run of its own. What it could not send goes into a journal of its own beside that of the run."""

    def __init__(
        self,
        place: RankPlace,
        settings: Settings,
        roots: dict[str, nn.Module] | None,
        optimizers: list[Optimizer] | None,
    ) -> None:
        self.settings = settings
        self.closed = False
        self.rank = place.rank
        self._roots = [weakref.ref(root) for root in (roots or {}).values()]
        if roots is not None:
            check_globs(settings.include, settings.exclude, roots)
        self._folder: Path | None = None
        self._failed = False
        self._lock = threading.Lock()
        governor = shared_governor(settings)
        self._ranks = Follower(place, governor.agree, self._met, self._lost)
        self._mailbox = Mailbox(self._ranks.handle, self._ranks.idle)
        subjects = Subjects(roots, optimizers, settings.include, settings.exclude)
        self._recorder = StepMachine(subjects, governor, self._mailbox.post, self._step_aside)
        self._recorder.start()
        atexit.register(self._at_exit)
        _open.append(self)

    @property
    def run(self) -> Run:
        from undertow.run import open_run

        if self._folder is None:
            raise UndertowError("the first rank has not begun its run yet", way_out="Read it there, or later")
        return open_run(self._folder)

    @property
    def findings(self) -> list[Finding]:
        """Findings are made on the first rank."""
        return []

    def log(self, **scalars: float) -> None:
        """Numbers are logged on the first rank."""

    def on_finding(self, callback: Callable[[Finding], object]) -> None:
        """Findings are made on the first rank."""

    def diagnose(self) -> Diagnosis:
        return self.run.diagnose()

    def close(self, status: RunStatus = RunStatus.FINISHED, message: str = "") -> None:
        with self._lock:
            if self.closed:
                return
            self.closed = True
        self._recorder.stop()
        atexit.unregister(self._at_exit)
        if self in _open:
            _open.remove(self)
        if status is RunStatus.FAILED:
            self._mailbox.post(Note("note", self._recorder.step, {"reason": f"rank {self.rank} failed: {message}"}))
        if self._mailbox.close(_PATIENCE):
            within(_PATIENCE, self._ranks.finish)

    def abandon(self) -> None:
        """In a forked child: this watch belongs to the parent."""
        self.closed = True
        atexit.unregister(self._at_exit)

    def __repr__(self) -> str:
        return f"<undertow.Watch of rank {self.rank}>"

    def _step_aside(self, error: Exception) -> None:
        if isinstance(error, CriticalFindingError):
            raise error
        if self._failed:
            return
        self._failed = True
        self._mailbox.post(Note("error", self._recorder.step, {"traceback": _trace(error)}))
        _say(
            f"error UT100 on rank {self.rank}: {type(error).__name__}: {error}. Undertow has stepped aside there and "
            "your training goes on"
        )

    # -- in the background thread -------------------------------------------------------------------------

    def _met(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None

    def _lost(self, reason: str, notes: list[Note]) -> None:
        """Nobody to send to: stop measuring, say so once, and leave what this rank has to say where it can be found."""
        if reason:
            self._recorder.stop()
            if not self.settings.quiet:
                _say(f"rank {self.rank} is not watched any more ({reason}); your training goes on")
            notes = [*notes, Note("note", self._recorder.step, {"reason": reason})]
        if self._folder is not None and self._folder.is_dir():
            journal = Journal(self._folder, f"events-rank{self.rank}.jsonl")
            for note in notes:
                journal.append(note.kind, note.step, {"rank": self.rank, **note.fields})
            journal.close()
