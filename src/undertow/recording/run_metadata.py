"""What a run begins with: the facts of this process, and the folder, or the address, that it goes to."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from undertow import __version__
from undertow.recording.redaction import redacted
from undertow.schema import RunFacts
from undertow.schema.addresses import address_of
from undertow.settings import Settings
from undertow.show.bars import say
from undertow.store.latest import PRIVATE, new_run_folder

if TYPE_CHECKING:
    from undertow.store.cloud.upload import Uploader


def facts_here(settings: Settings, torch: str = "", device: str = "") -> RunFacts:
    return RunFacts(
        undertow=__version__,
        name=settings.name or "",
        created=time.time(),
        process=os.getpid(),
        host=platform.node(),
        command=redacted(sys.argv) if settings.command_line else [],
        python=platform.python_version(),
        torch=torch,
        device=device,
        settings=settings.to_record(),
    )


def folder_of(settings: Settings) -> tuple[Path, Uploader | None]:
    """Where the run is written, wherever the training goes from here; what sends it on, if it has an address."""
    address = None if settings.run_dir is None else address_of(settings.run_dir)
    if address is None:
        mode = 0o777 if settings.shared else PRIVATE
        if settings.run_dir is None:
            return new_run_folder(settings.directory, settings.name or "", mode).absolute(), None
        folder = Path(settings.run_dir)
        with contextlib.suppress(OSError):  # whoever writes to it says why it cannot
            folder = folder.absolute()
            folder.mkdir(mode, parents=True, exist_ok=True)
        return folder, None
    from undertow.store.cloud.spool import begin_upload

    uploader = begin_upload(address, settings.resume, lambda line: say(f"undertow: {line}"))
    return uploader.folder, uploader
