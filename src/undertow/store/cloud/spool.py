"""Where a run lies on this machine while it is on its way to an address, and what is there of an earlier one."""

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from undertow.errors import SettingError, UnwritableRunError
from undertow.store.cloud.cache import mark_of
from undertow.store.cloud.mirror import Mirror
from undertow.store.cloud.place import Place, reason_of
from undertow.store.cloud.upload import INTERVAL, Uploader
from undertow.store.journal import EVENTS_FILE
from undertow.store.run_documents import RUN_FILE

_PATIENCE = 15.0  # seconds to wait for a first answer; a place that is silent is tried again while training
Answer = TypeVar("Answer")


def begin_upload(address: str, resume: bool, say: Callable[[str], None], interval: float = INTERVAL) -> Uploader:
    """A folder for the run on this machine, and what sends it; `start` that once the run is begun.

    A place that holds a run already is refused, unless that run is to be resumed. A place that cannot be reached is
    no reason not to train.
    """
    place = Place(address)
    answer, problem = _within(_PATIENCE, place.files)
    if answer is None and resume and _spooled(address) is None:
        raise UnwritableRunError(f"{address} cannot be read, so its run cannot be resumed: {problem}")
    there = bool(answer)
    if there and not resume:
        raise UnwritableRunError(
            f"{address} already holds a run, or something else", way_out="Choose another address, or resume this one"
        )
    folder = _resumed(place, there, say) if resume else None
    uploader = Uploader(folder or _free_folder(address), place, say, interval)
    atexit.register(_remove_if_sent, uploader)
    return uploader


def _resumed(place: Place, there: bool, say: Callable[[str], None]) -> Path | None:
    """The folder to go on from: the one left here, unless the run was continued elsewhere since."""
    folder = _spooled(place.address)
    if not there or (folder is not None and _continues(folder, place)):
        return folder
    if folder is not None:
        say(f"{place.address} was continued elsewhere; what was left of it in {folder} stays there")
    folder = _free_folder(place.address)
    Mirror(place.address, folder).fetch()
    return folder


def _continues(folder: Path, place: Place) -> bool:
    """Journals are only ever appended to: ours must begin with what is there."""
    try:
        return (folder / EVENTS_FILE).read_bytes().startswith(place.read(EVENTS_FILE))
    except Exception:  # no journal here or there
        return False


def _root() -> Path:
    given = os.environ.get("UNDERTOW_SPOOL")
    root = Path(given).expanduser() if given else Path(tempfile.gettempdir()) / f"undertow-spool-{_user()}"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = root.stat() if given else root.lstat()  # whose link it is counts where anybody may lay one
    except OSError as problem:
        raise SettingError(
            f"the spool folder {root} cannot be made: {problem.strerror}", way_out="Set UNDERTOW_SPOOL to a folder"
        ) from None
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise SettingError(
            f"the spool folder {root} belongs to another user, who could read and change the run",
            way_out="Set UNDERTOW_SPOOL to a folder of your own",
        )
    return root


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "user"


def _folders(address: str) -> list[Path]:
    return sorted(_root().glob(f"{mark_of(address)}-*"), key=lambda folder: int(folder.name.rpartition("-")[2]))


def _spooled(address: str) -> Path | None:
    """The newest folder that a run to this address has left."""
    left = [folder for folder in _folders(address) if (folder / RUN_FILE).exists()]
    return left[-1] if left else None


def _free_folder(address: str) -> Path:
    number = int(folders[-1].name.rpartition("-")[2]) + 1 if (folders := _folders(address)) else 1
    while True:
        folder = _root() / f"{mark_of(address)}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:  # another process was quicker
            number += 1
        else:
            return folder


def _remove_if_sent(uploader: Uploader) -> None:
    if uploader.complete or not (uploader.folder / RUN_FILE).exists():
        shutil.rmtree(uploader.folder, ignore_errors=True)


def _within(seconds: float, ask: Callable[[], Answer]) -> tuple[Answer | None, str]:
    """The answer, or why there is none."""
    answers: list[Answer] = []
    problems: list[str] = []

    def work() -> None:
        try:
            answers.append(ask())
        except Exception as problem:
            problems.append(reason_of(problem))

    thread = threading.Thread(target=work, name="undertow cloud", daemon=True)
    thread.start()
    thread.join(seconds)
    return (answers[0] if answers else None), (problems[0] if problems else f"no answer within {seconds:.0f} s")
