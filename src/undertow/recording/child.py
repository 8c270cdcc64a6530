"""The main program of the process that records a run: does what it is asked, and ends when nobody is left to ask."""

import contextlib
import os
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

from undertow.recording.messages import Answer, Close, Failed, Ready, TakeOver, decode_request, encode
from undertow.recording.recorder import RunRecorder

_NICE = 5  # the training comes first


def main(handle: int) -> None:
    connection = Connection(handle)
    try:
        _serve(connection)
    except BaseException:
        with contextlib.suppress(OSError):
            connection.send_bytes(encode(Failed(traceback.format_exc())))
        raise


def _serve(connection: Connection) -> None:
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)  # meant for the training; we end when it does
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    received: SimpleQueue[bytes | None] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
    answer: Ready | Answer = Ready()
    recorder: RunRecorder | None = None
    while True:
        with contextlib.suppress(OSError):  # nobody listens any more, but what had been sent before counts
            connection.send_bytes(encode(answer))
        message = received.get()
        if message is None:  # the training was killed, and everything it had sent is written
            if recorder is not None:
                recorder.writer.close()
            return
        request = decode_request(message)
        if isinstance(request, TakeOver):
            folder = Path(request.folder)
            recorder = RunRecorder.take_over(folder, request.facts, request.disk_budget, request.seam_due)
        assert recorder is not None, "the first request takes a run over"
        answer = recorder.handle(request)
        if isinstance(request, Close):
            recorder = None


def _receive(connection: Connection, received: SimpleQueue[bytes | None]) -> None:
    """At once, so that the training never waits for an answer to be read before it can ask for more."""
    try:
        with contextlib.suppress(EOFError, OSError):
            while True:
                received.put(connection.recv_bytes())
    finally:
        received.put(None)
