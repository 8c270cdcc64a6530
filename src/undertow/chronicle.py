"""What becomes of a watched training: its readings become frames, which are written and judged.

Everything here happens in the background thread, apart from making it and asking it for what is known so far. Rules
and files are the work of an account, kept in this process at first. Once that has cost the training as much as
another process would, one takes over: its Python does not compete with the training's for the interpreter's lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from undertow.chronicler.account import Account, Told
from undertow.chronicler.known import Known
from undertow.chronicler.remote import Remote
from undertow.chronicler.start import can_start, is_worthwhile
from undertow.probe.assemble import Assembler
from undertow.probe.readings import NewLayers, Note, RawFrame
from undertow.schema.facts import RunFacts
from undertow.schema.findings import Diagnosis, Finding
from undertow.schema.frames import Frame
from undertow.schema.layers import LayerTable

_FACTS_EVERY = 2.0  # seconds between two writes of run.json
_WORTH_A_PROCESS = 0.15  # seconds of rules and writing so far; starting a process takes about twice as many
_SHORT = 1.0  # seconds; a training that ends before this has no use for it


class Chronicle:
    def __init__(
        self,
        folder: Path,
        facts: RunFacts,
        resume: bool,
        disk_budget: int | None,
        chronicler: str = "never",
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_crowded`: whether another process would find no processor that the training leaves alone."""
        self.folder, self.facts = folder, facts
        self.assembler = Assembler()
        self.on_frames: Callable[[Sequence[Frame]], None] | None = None  # told of what was just written
        self._known = Known(folder, facts)
        self._disk_budget = disk_budget
        self._account: Account | Remote = Account.begin(self._known, resume, disk_budget)
        self.first_step = self._known.first_step
        self._sequence = self._account.last_sequence + 1
        self._lock = threading.RLock()  # of the account
        self._began = self._facts_written = time.monotonic()
        self._spent = 0.0
        self._coming: Remote | None = None  # a process that is still starting
        self._is_stuck = False  # neither another process nor this one can go on
        self._is_crowded = is_crowded
        self._may_hand_over = chronicler == "auto" and can_start() and is_worthwhile()
        if chronicler == "always":
            self._start_process()
            self._hand_over()

    @property
    def layers(self) -> LayerTable:
        return self._known.layers

    # -- what comes in ------------------------------------------------------------------------------------

    def record(self, raws: list[RawFrame]) -> Iterator[Told]:
        """Have frames written and judged; what that changed, and what earlier ones did, comes out."""
        frames = self.assembler.frames(raws, self._sequence)
        self._sequence += len(frames)
        with self._lock:
            began = time.thread_time()
            self._account.record(frames)
            self._spent += time.thread_time() - began
            self._look_after()
        yield from self.news()

    def take_layers(self, new: NewLayers) -> None:
        self.facts.optimizers = new.facts.get("optimizers", [])
        self.facts.device = new.facts.get("device", "")
        self.facts.layers_skipped = new.facts.get("layers_skipped", 0)
        for reason in new.facts.get("reasons", []):
            self.add_reason(reason)
        with self._lock:
            self._account.take_layers(new.table, new.graph)
            self._account.write_event("layers", None, {"count": len(new.table)})
            self._look_after()

    def take_note(self, note: Note) -> None:
        if note.kind == "note" and "reason" in note.fields:
            self.add_reason(note.fields["reason"])
        with self._lock:
            self._account.take_event(note.kind, note.step, note.fields)
            self._look_after()

    def remark(self, reason: str) -> None:
        """A line in the journal that changes nothing about what is known."""
        with self._lock:
            self._account.write_event("note", None, {"reason": reason})
            self._look_after()

    def add_reason(self, reason: str) -> None:
        if reason not in self.facts.reasons:
            self.facts.reasons.append(reason)

    def facts_are_due(self) -> bool:
        """Once in a while: time to write the facts again."""
        if time.monotonic() - self._facts_written <= _FACTS_EVERY:
            return False
        self._facts_written = time.monotonic()
        return True

    def write_facts(self) -> None:
        with self._lock:
            self._account.write_facts()
            self._look_after()

    # -- what comes out -----------------------------------------------------------------------------------

    def news(self) -> Iterator[Told]:
        """What has changed since the last time, as far as it is known by now."""
        with self._lock:
            self._account.look()
            self._look_after()
            news = list(self._account.news)
            self._account.news.clear()
        for one in news:  # without the lock: this calls the user's functions
            yield from one.told
            if self.on_frames is not None and one.frames:
                self.on_frames(one.frames)

    def settle(self) -> None:
        """Wait until all that came in is recorded."""
        with self._lock:
            self._account.settle()
            self._look_after()

    def take_seconds_elsewhere(self) -> float:
        """Processor time that frames have taken another process since the last time."""
        account = self._account
        if not isinstance(account, Remote):
            return 0.0
        seconds, account.seconds = account.seconds, 0.0
        return seconds

    @property
    def bytes_written(self) -> int:
        return self._account.bytes_written

    def findings(self) -> list[Finding]:
        """What has been found so far, ranked."""
        return self._known.findings(self._found())

    def diagnose(self) -> Diagnosis:
        return self._known.diagnose(self._found())

    def _found(self) -> list[Finding]:
        with self._lock:
            found = self._account.found()
            return self._account.found() if self._look_after() else found

    # -- who does the work --------------------------------------------------------------------------------

    def _look_after(self) -> bool:
        """See to it that somebody can go on; True when this process had to take over again."""
        if isinstance(self._account, Account):
            if self._coming is not None:
                self._wait_for_process(self._coming)
            elif self._is_worth_a_process() and not self._is_crowded():
                self._start_process()
        elif self._account.lost and not self._is_stuck:
            self._take_back(self._account)
            return True
        return False

    def _is_worth_a_process(self) -> bool:
        return self._may_hand_over and self._spent > _WORTH_A_PROCESS and time.monotonic() - self._began > _SHORT

    def _start_process(self) -> None:
        self._may_hand_over = False
        try:
            self._coming = Remote(self._known, self._disk_budget)
        except Exception as error:
            self._do_without(f"{type(error).__name__}: {error}")

    def _wait_for_process(self, coming: Remote) -> None:
        """It reads what is on disk: nothing may be missing there."""
        coming.look()
        if coming.is_late or coming.lost:
            coming.stop()
            self._do_without(coming.lost or "it did not start in time")
        elif coming.ready:
            self._hand_over()

    def _hand_over(self) -> None:
        coming, account = self._coming, self._account
        self._coming = None
        if coming is None or not isinstance(account, Account):
            return
        if account.trouble:  # a full disk, say: what only this process knows would be lost
            coming.stop()
            return
        account.close()
        coming.begin(account)
        self._account = coming
        self._look_after()

    def _take_back(self, gone: Remote) -> None:
        self._is_stuck = True
        account = Account.take_over(self._known, self._disk_budget, gone.seam_due, gone.last_answered)
        self._is_stuck, self._account = False, account
        gone.unanswered(account)
        self._do_without(gone.lost)

    def _do_without(self, why: str) -> None:
        self._coming = None
        self.add_reason(f"the run is written by the training's own process: another was tried, but {why}")

    # -- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._lock:
            self._stop_coming()
            self._account.close()
            if self._look_after():
                self._account.close()

    def give_up(self) -> None:
        """Leave no process behind when there is no time to close."""
        self._stop_coming()
        if isinstance(self._account, Remote):
            self._account.stop()

    def _stop_coming(self) -> None:
        coming, self._coming = self._coming, None
        self._may_hand_over = False
        if coming is not None:
            coming.stop()

    def abandon(self) -> None:
        """In a forked process: all of this belongs to the one that forked."""
        self._account.abandon()
        if self._coming is not None:
            self._coming.abandon()
