"""Starting the process that keeps the record of a training."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from undertow.chronicler.child import main; main(int(sys.argv[1]))"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def can_start() -> bool:
    """Whether this program is an ordinary Python, on a system whose processes can inherit a socket."""
    return (
        os.name == "posix"
        and not getattr(sys, "frozen", False)
        and "python" in os.path.basename(sys.executable or "").lower()
    )


def is_worthwhile() -> bool:
    """On a single processor it would only take turns with the training."""
    return _processors() > 1


def competes(threads: int) -> bool:
    """Whether the training has a thread for every processor, so that another process works at its expense."""
    return _processors() <= threads


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not a Linux
        return os.cpu_count() or 1


def start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process, and our end of the line to it. Raises OSError.

    It is started anew and not forked: torch has threads, which a fork would leave behind with what they hold. A
    session of its own keeps Ctrl-C from it; it ends when our end is closed, by us or by our end.
    """
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(theirs.fileno()), *_path()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def _path() -> list[str]:
    """Where to import from: as here, but the script's own folder last. A `queue.py` in it must not be ours."""
    home = str(Path(__file__).resolve().parent.parent.parent)
    first = sys.path[:1]
    rest = [os.path.abspath(place) for place in sys.path[1:] if place]
    return [*rest, home, *(os.path.abspath(place) for place in first)]
