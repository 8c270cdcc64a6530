"""Is the process that writes a run still there?"""

from __future__ import annotations

import os
import socket

from undertow.schema.facts import RunFacts


def is_on_this_host(facts: RunFacts) -> bool:
    return facts.host == socket.gethostname()


def process_exists(process: int) -> bool:
    if process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's
    return not _is_zombie(process)


def is_another_living_process(facts: RunFacts) -> bool:
    return is_on_this_host(facts) and facts.process != os.getpid() and process_exists(facts.process)


def _is_zombie(process: int) -> bool:
    """Ended, but its parent has not asked yet. Only Linux tells."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] == [b"Z"]
    except OSError:
        return False
