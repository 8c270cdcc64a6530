"""The process that keeps the record of a training: does what it is asked, and ends when nobody is left to ask."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import traceback
from dataclasses import fields
from pathlib import Path

from undertow.chronicler.account import Account, Told
from undertow.chronicler.known import Known
from undertow.chronicler.protocol import (
    Answer,
    Ask,
    Begin,
    Close,
    Done,
    Event,
    Facts,
    Failed,
    FrameReader,
    Frames,
    Layers,
    Ready,
    Request,
    decode_request,
    encode,
)
from undertow.chronicler.wire import GoneError, Wire
from undertow.schema.facts import RunFacts

_NICE = 5  # the training comes first


def main(number: int) -> None:
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)  # meant for the training; we end when it does
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    wire = Wire(socket.socket(fileno=number))
    clerk = Clerk()
    answer: Answer = Ready()
    try:
        while True:
            with contextlib.suppress(GoneError):  # nobody listens any more, but what had been sent before counts
                wire.send(encode(answer))
            if clerk.closed:
                return
            wire.wait()
            head, body = wire.arrived.popleft()
            answer = clerk.answer(decode_request(head), body)
    except GoneError:  # the training was killed, and everything it had sent is written
        clerk.end()
    except Exception:
        with contextlib.suppress(GoneError):
            wire.send(encode(Failed(traceback.format_exc())))
        raise


class Clerk:
    def __init__(self) -> None:
        self.closed = False
        self._account: Account | None = None
        self._reader = FrameReader()

    def answer(self, request: Request, body: bytes) -> Done:
        began = time.thread_time()
        told: list[Told] = []
        if isinstance(request, Begin):
            known = Known(Path(request.folder), request.facts)
            self._account = Account.take_over(known, request.disk_budget, request.seam_due)
        account = self._account
        assert account is not None, "the first request begins"
        match request:
            case Frames():
                told = account.judge(self._reader.frames(request, body))
            case Layers():
                account.known.facts.optimizers = request.optimizers
                account.take_layers(request.table(), request.graph)
            case Event():
                (account.take_event if request.explains else account.write_event)(
                    request.kind, request.step, request.fields
                )
            case Facts():
                _learn(account.known.facts, request.facts)
                account.write_facts()
            case Close():
                _learn(account.known.facts, request.facts)
                account.close()
                self.closed = True
            case Begin() | Ask():
                pass
        facts = account.known.facts
        found = account.found() if isinstance(request, Ask | Close) else None
        seconds = time.thread_time() - began
        return Done(told, account.bytes_written, facts.frames_dropped, facts.seams, found, seconds)

    def end(self) -> None:
        if self._account is not None:
            self._account.close()


def _learn(facts: RunFacts, new: RunFacts) -> None:
    """All but what is known here better."""
    for field in fields(RunFacts):
        if field.name not in ("frames_dropped", "seams"):
            setattr(facts, field.name, getattr(new, field.name))
