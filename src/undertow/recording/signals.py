"""Signals that end a process: the run is closed first, at once, and the process ends as it would have."""

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_deferred() -> Generator[None]:
    """Let a Ctrl-C wait until this is done; a second one does not wait."""
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(former):
        yield
        return
    came: list[FrameType | None] = []

    def defer(number: int, frame: FrameType | None) -> None:
        came.append(frame)
        if len(came) > 1:
            former(number, frame)

    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
        if len(came) == 1:
            former(signal.SIGINT, came[0])


def begun(work: Callable[[], None]) -> threading.Thread | None:
    """A thread that does this. An interpreter that is about to end may allow none: then it is done at once."""
    thread = threading.Thread(target=work, name="undertow closing", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        work()
        return None
    return thread


def close_on_termination(close: Callable[[], None]) -> None:
    """On SIGTERM, call `close` and then end by that signal. Not if the program has asked for something else.

    Python calls a handler only when the main thread next runs Python, which a long call into C puts off. So a thread
    waits for the byte that the interpreter writes as soon as the signal arrives, whatever the main thread does.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def wait(number: int, frame: FrameType | None) -> None:
        waiting.join()  # the process ends there, however often it is asked to

    def work() -> None:
        while signal.SIGTERM not in ours.recv(64):
            pass  # another signal, which is the program's own affair
        if signal.getsignal(signal.SIGTERM) is not wait:
            return  # the program has changed its mind since
        close()
        ctypes.pythonapi.PyOS_setsig(int(signal.SIGTERM), None)  # `signal.signal` is for the main thread only
        os.kill(os.getpid(), signal.SIGTERM)

    def hold() -> None:
        """A worker that is terminated while it is being forked would still write to the line of its parent."""
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def leave_to_parent() -> None:
        """In a forked worker: its signals are its own, and the line that tells of them is its parent's."""
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is wait:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        release()

    masks = threading.local()
    waiting = threading.Thread(target=work, name="undertow termination", daemon=True)
    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=leave_to_parent)
    signal.signal(signal.SIGTERM, wait)
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)
    waiting.start()
