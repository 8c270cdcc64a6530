"""The process that records a run beside a training: its start, what goes there and back, and its end."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from undertow.recording.messages import Answer, Failed, Ready, decode_answer

_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from undertow.recording.child import main; main(int(sys.argv[1]))"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_PATIENCE = 20.0  # seconds without an answer, or in which it takes nothing
_START_PATIENCE = 60.0  # seconds until it is ready: a busy machine is slow to import
_END_PATIENCE = 5.0


def can_start() -> bool:
    """Whether this program is an ordinary Python, on a system whose processes can inherit a socket."""
    return (
        os.name == "posix"
        and not getattr(sys, "frozen", False)
        and "python" in os.path.basename(sys.executable or "").lower()
    )


def competes(threads: int) -> bool:
    """Whether the training has a thread for every processor, so that another process works at its expense."""
    return processors() <= threads


def processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not a Linux
        return os.cpu_count() or 1


class ProcessLostError(Exception):
    """The other process has ended, or says nothing any more; `trace` is of an error of ours there."""

    def __init__(self, why: str, trace: str = "") -> None:
        super().__init__(why)
        self.trace = trace


class RecorderProcess:
    def __init__(self) -> None:
        """Raises OSError when no process can be started.

        It is started anew and not forked: torch has threads, which a fork would leave behind with what they hold. A
        session of its own keeps Ctrl-C from it; it ends when our end of the line is closed, by us or by our end.
        """
        self._started = time.monotonic()
        self._is_ready = False
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(True)  # whatever the program's default is
        limit = struct.pack("ll", int(_PATIENCE), 0)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, limit)
        self._connection = Connection(ours.detach())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(theirs.fileno()), *_path()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
            )
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_ready(self, wait: bool = False) -> bool:
        if not self._is_ready:
            left = max(0.0, self._started + _START_PATIENCE - time.monotonic())
            if self._has_message(left if wait else 0.0):
                self._is_ready = isinstance(self._read(), Ready)
            elif wait or not left:
                raise ProcessLostError("it did not start in time")
        return self._is_ready

    def send(self, message: bytes) -> None:
        # A training that has asked for it would be ended by the signal of a broken pipe.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        try:
            self._connection.send_bytes(message)
        except OSError as error:
            if signal.SIGPIPE in signal.sigpending():
                signal.sigwait({signal.SIGPIPE})
            while self._has_message(0.0):
                self._read()  # its last words say why it has ended
            raise ProcessLostError(f"it is gone ({error.strerror})") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def receive(self, wait: bool) -> Answer | None:
        """The next answer; None when there is none yet and it is not waited for."""
        if not self._has_message(_PATIENCE if wait else 0.0):
            if wait:
                raise ProcessLostError(f"it has not answered for {_PATIENCE:.0f} seconds")
            return None
        answer = self._read()
        assert isinstance(answer, Answer)
        return answer

    def _has_message(self, patience: float) -> bool:
        try:
            return self._connection.poll(patience)
        except OSError as error:
            raise ProcessLostError(f"it is gone ({error.strerror})") from None

    def _read(self) -> Ready | Answer:
        try:
            message = decode_answer(self._connection.recv_bytes())
        except EOFError:
            raise ProcessLostError("it has ended") from None
        except OSError as error:
            raise ProcessLostError(f"it is gone ({error.strerror})") from None
        if isinstance(message, Failed):
            raise ProcessLostError(f"it failed: {message.why.strip().splitlines()[-1]}", message.why)
        return message

    # -- the end ------------------------------------------------------------------------------------------

    def end(self) -> None:
        """After its last answer."""
        self._connection.close()
        try:
            self._process.wait(_END_PATIENCE)
        except subprocess.TimeoutExpired:
            self.stop()

    def stop(self) -> None:
        """At once. What it had not written yet is not written."""
        self._process.kill()
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a disk that does not answer holds it even then
            self._process.wait(_END_PATIENCE)

    def abandon(self) -> None:
        """In a forked process: the line belongs to the one that forked, and so does the other process."""
        self._connection.close()
        self._process.returncode = 0


def _path() -> list[str]:
    """Where to import from: as here, but the script's own folder last. A `queue.py` in it must not be ours."""
    home = str(Path(__file__).resolve().parent.parent.parent)
    first = sys.path[:1]
    rest = [os.path.abspath(place) for place in sys.path[1:] if place]
    return [*rest, home, *(os.path.abspath(place) for place in first)]
