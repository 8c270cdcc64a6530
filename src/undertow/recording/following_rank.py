"""Every rank but the first of a distributed training: sends what it measures to the one that writes the run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undertow.probe.distributed.follower import Follower
from undertow.probe.distributed.rank_tree import RankPlace
from undertow.probe.mailbox import Mailbox
from undertow.probe.readings import Note
from undertow.probe.step import StepMachine
from undertow.recording.run_recording import PATIENCE
from undertow.schema import LayerTable, RunStatus
from undertow.settings import Settings
from undertow.show.bars import say
from undertow.store.journal import Journal

if TYPE_CHECKING:
    from undertow.probe.distributed.shared_schedule import SharedGovernor


class FollowingRank:
    """Findings are made on the first rank. What this one could not send goes into a journal of its own there."""

    recording = None  # it writes no run
    first_step = 0
    layers = LayerTable()

    def __init__(self, rank: RankPlace, settings: Settings) -> None:
        self.has_failed = False
        self.label = f"of rank {rank.rank}"
        self._rank, self._quiet = rank.rank, settings.quiet
        self.run_folder: Path | None = None  # of the first rank, once they have met
        self.governor = shared_governor(settings)
        self._follower = Follower(rank, self.governor.agree, self._met, self._lost)
        self.handle, self.idle = self._follower.handle, self._follower.idle

    def attach(self, steps: StepMachine, mailbox: Mailbox) -> None:
        self._step_machine = steps

    def is_crowded(self) -> bool:
        return False

    def settle(self) -> None:
        pass

    def step_aside(self, error: Exception) -> bool:
        if self.has_failed:
            return False
        self.has_failed = True
        say(
            f"undertow: error UT100 on rank {self._rank}: {type(error).__name__}: {error}. Undertow has stepped aside "
            "there and your training goes on"
        )
        return True

    def fail_to_close(self, error: Exception, status: RunStatus) -> None:
        self.step_aside(error)

    def end_now(self, message: str) -> None:
        pass

    def close(self, status: RunStatus, message: str, in_time: bool) -> None:
        if not in_time:
            return
        if status is RunStatus.FAILED:
            reason = f"rank {self._rank} failed: {message}"
            self._follower.handle([Note("note", self._step_machine.step, {"reason": reason})])
        within(PATIENCE, self._follower.finish)

    # -- in the background thread -------------------------------------------------------------------------

    def _met(self, folder: str) -> None:
        self.run_folder = Path(folder) if folder else None

    def _lost(self, reason: str, notes: list[Note]) -> None:
        """Nobody to send to: stop measuring, say so once, and leave what this rank has to say where it can be found."""
        if reason:
            self._step_machine.stop()
            if not self._quiet:
                say(f"undertow: rank {self._rank} is not watched any more ({reason}); your training goes on")
            notes = [*notes, Note("note", self._step_machine.step, {"reason": reason})]
        if self.run_folder is not None and self.run_folder.is_dir():
            journal = Journal(self.run_folder, f"events-rank{self._rank}.jsonl")
            for note in notes:
                journal.append(note.kind, note.step, {"rank": self._rank, **note.fields})
            journal.close()


def shared_governor(settings: Settings) -> SharedGovernor:
    from undertow.probe.distributed.shared_schedule import SharedGovernor

    return SharedGovernor(*wanted_pace(settings))


def wanted_pace(settings: Settings) -> tuple[Any, ...]:
    """What the user has said about how often to measure, as a governor takes it."""
    every = None if settings.every == "auto" else int(settings.every)
    activations = None if settings.activations == "auto" else settings.activations
    return every, settings.budget, activations, settings.budget_floor


def within(seconds: float, work: Callable[[], None]) -> bool:
    """Do this, but wait no longer for it than so many seconds; False when it was not done by then."""
    thread = threading.Thread(target=work, name="undertow closing", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
