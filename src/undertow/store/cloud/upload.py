"""Sending a run folder while it is written. One thread; the training never waits for it and never sees it fail."""

import importlib
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from undertow.errors import UnreadableRunError, UnwritableRunError
from undertow.store.cloud.place import Place, RemoteFile, reason_of
from undertow.store.cloud.run_files import (
    SCALARS_TURN,
    SEGMENT_END,
    LocalFile,
    content_of,
    files_here,
    is_growing,
    turn_of,
)
from undertow.store.run_documents import RUN_FILE, read_facts

INTERVAL = 10.0  # seconds between two looks at the folder
_GROWING_BYTES_PER_SECOND = 1_000_000  # of files sent before they are finished, which will be sent again
_LONGEST_PAUSE = 300.0  # seconds between tries when nothing gets through


class Sent(NamedTuple):
    files: int
    size: int


class Upload:
    """What of a folder is already at a place, and sending the rest."""

    def __init__(self, folder: Path, place: Place) -> None:
        self.folder = folder
        self.place = place
        self._sent: dict[str, tuple[int, int, int]] = {}  # name → version that is there
        self._known = False  # whether we have looked at what is there
        self._growing_due = 0.0

    def pass_over(self, *, last: bool = False) -> Sent:
        """Send what has changed. Raises what the file system raises; the next pass goes on from there."""
        if not self._known:
            self._look()
        files = files_here(self.folder)
        now = time.monotonic()
        changed = [file for file in files if self._sent.get(file.name) != file.version]
        growing = {file.name for file in changed if is_growing(self.folder, file)}
        hold_back = not last and now < self._growing_due
        count = size = 0
        for file in changed:
            # Scalars make a frame count: they wait for the files that still grow.
            if hold_back and (file.name in growing or turn_of(file.name) == SCALARS_TURN):
                continue
            try:
                data = content_of(self.folder, file)
            except FileNotFoundError:
                continue  # removed by the disk budget just now
            self.place.write(file.name, data)
            self._sent[file.name] = file.version
            count, size = count + 1, size + len(data)
        if growing and not hold_back:
            volume = sum(file.size for file in changed if file.name in growing)
            self._growing_due = now + volume / _GROWING_BYTES_PER_SECOND
        for name in self._sent.keys() - {file.name for file in files}:
            self.place.remove(name)
            del self._sent[name]
        return Sent(count, size)

    def missing(self) -> list[LocalFile]:
        """What is not there in its present form, as far as is known."""
        return [file for file in files_here(self.folder) if self._sent.get(file.name) != file.version]

    def forget(self) -> None:
        """After a failure: what is there must be looked at again."""
        self._known = False

    def _look(self) -> None:
        """Finished files that are there in the right size need not be sent again."""
        there = self.place.files()
        if RUN_FILE not in there and not there:
            self.place.write(RUN_FILE, (self.folder / RUN_FILE).read_bytes())  # the place is taken from now on
        elif RUN_FILE not in there or not _same_run(self.folder, self.place.read(RUN_FILE)):
            raise UnwritableRunError(f"{self.place.address} holds another run")
        self._sent = {
            file.name: file.version
            for file in files_here(self.folder)
            if _is_there(file, there) and not is_growing(self.folder, file)
        }
        self._known = True


class Uploader:
    """The thread that sends a run, and its end."""

    def __init__(self, folder: Path, place: Place, say: Callable[[str], None], interval: float = INTERVAL) -> None:
        self.folder = folder
        self.address = place.address
        self.complete = False
        self._upload = Upload(folder, place)
        self._say = say
        self._interval = interval
        self._reason = ""  # why the latest pass failed
        self._told = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="undertow upload", daemon=True)

    def start(self, before_exit: Callable[[], None] | None = None) -> None:
        """`before_exit`, a method, is called while the interpreter can still open connections."""
        self._thread.start()
        register = getattr(threading, "_register_atexit", None)
        if before_exit is None or register is None:
            return
        # What file systems use to connect is shut down before `atexit` calls anybody; only this comes earlier.
        importlib.import_module("concurrent.futures.thread")  # what is registered after it is called before it
        method = weakref.WeakMethod(cast(Any, before_exit))

        def call() -> None:
            if (alive := method()) is not None:
                alive()

        register(call)

    def close(self, patience: float) -> bool:
        """Send the rest, for so many seconds at most; False, and a line that says so, when not all of it is there."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(patience)
        if not self.complete:
            left = self._upload.missing()
            why = self._reason or f"not done within {patience:.0f} s"
            self._say(
                f"{len(left)} files ({sum(file.size for file in left):,} bytes) were not uploaded to {self.address} "
                f"({why}). The whole run is in {self.folder}; send it with: "
                f"python -m undertow.store.cloud {self.folder} {self.address}"
            )
        return self.complete

    def _work(self) -> None:
        pause = self._interval
        while not self._ending.wait(pause):
            pause = self._interval if self._try() else min(2 * pause, _LONGEST_PAUSE)
        self.complete = self._try(last=True)

    def _try(self, *, last: bool = False) -> bool:
        try:
            self._upload.pass_over(last=last)
        except Exception as problem:  # wrong credentials, no network, a full bucket: the run is safe here
            self._upload.forget()
            self._reason = problem.message if isinstance(problem, UnwritableRunError) else reason_of(problem)
            if not self._told and not last:
                self._told = True
                self._say(
                    f"cannot upload to {self.address} ({self._reason}); your training goes on, the run is kept in "
                    f"{self.folder}, and uploading is tried again"
                )
            return False
        self._reason = ""
        return True


def send_run(folder: Path, address: str) -> Sent:
    """Send what of a run folder is not at an address yet, comparing sizes."""
    read_facts(folder)  # says what is wrong with it if it is no run
    place = Place(address)
    try:
        return Upload(folder, place).pass_over(last=True)
    except UnwritableRunError:
        raise
    except Exception as problem:
        raise UnwritableRunError(f"{address} cannot be written: {reason_of(problem)}") from None


def _is_there(file: LocalFile, there: dict[str, RemoteFile]) -> bool:
    return file.name.endswith(SEGMENT_END) and file.name in there and there[file.name].size == file.size


def _same_run(folder: Path, facts: bytes) -> bool:
    """Runs are told apart by the moment of their making, which a resumed run keeps."""
    try:
        return msgspec.json.decode(facts).get("created") == read_facts(folder).created
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, UnreadableRunError):
        return False
