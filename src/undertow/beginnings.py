"""What a watch begins with: the facts of this process, and the way to the address that its run goes to."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from undertow import __version__
from undertow.schema.addresses import address_of
from undertow.schema.facts import RunFacts
from undertow.settings import Settings

if TYPE_CHECKING:
    from undertow.store.cloud.upload import Uploader


def facts_here(settings: Settings) -> RunFacts:
    return RunFacts(
        undertow=__version__,
        name=settings.name or "",
        created=time.time(),
        process=os.getpid(),
        host=platform.node(),
        command=list(sys.argv),
        python=platform.python_version(),
        torch=torch.__version__,
        settings=settings.to_record(),
    )


def uploader_of(settings: Settings, tell: Callable[[str], None]) -> Uploader | None:
    """What sends the run to its address; None when it has a folder on this machine."""
    address = None if settings.run_dir is None else address_of(settings.run_dir)
    if address is None:
        return None
    from undertow.store.cloud.spool import begin_upload

    return begin_upload(address, settings.resume, tell)
