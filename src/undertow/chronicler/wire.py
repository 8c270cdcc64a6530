"""Messages over a socket pair: a head, and a body of plain bytes. Never more than one side waits for the other."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

_PREFIX = struct.Struct("<IQ")  # bytes of head and body
_CHUNK = 1 << 20
_AT_ONCE = 16  # buffers given to one call of the system
# A training that has asked for it would be ended by the signal of a broken pipe.
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class GoneError(Exception):
    """The other side has ended, or says nothing any more."""


class Wire:
    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)
        self._incoming = bytearray()
        self.arrived: deque[tuple[bytes, bytes]] = deque()  # whole messages: head and body

    def send(self, head: bytes, body: Sequence[NDArray[Any]] = (), patience: float | None = None) -> None:
        """Gives up when nothing moves for so many seconds."""
        parts = [part.data.cast("B") for part in body if part.size]
        left = [memoryview(_PREFIX.pack(len(head), sum(map(len, parts))) + head), *parts]
        while left:
            try:
                sent = self._end.sendmsg(left[:_AT_ONCE], (), _NO_SIGNAL)
            except BlockingIOError:
                # The other side may be waiting for us to take what it says.
                if self._wait(select.POLLIN | select.POLLOUT, patience) & select.POLLIN:
                    self._take()
                continue
            except OSError as error:
                raise GoneError(f"it is gone ({error.strerror})") from None
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def look(self) -> None:
        """Take what has come, without waiting."""
        while self._wait(select.POLLIN, 0.0) and self._take():
            pass

    def wait(self, patience: float | None = None) -> None:
        """Until at least one message has come."""
        while not self.arrived:
            self._wait(select.POLLIN, patience)
            self._take()

    def close(self) -> None:
        self._end.close()

    def _wait(self, what: int, patience: float | None) -> int:
        poll = select.poll()
        poll.register(self._end, what)
        began = time.monotonic()
        for _, happened in poll.poll(None if patience is None else 1e3 * patience):
            # An end of the other side shows as something to read: the end.
            return happened & what or select.POLLIN
        if patience:
            raise GoneError(f"it has not answered for {time.monotonic() - began:.0f} seconds")
        return 0

    def _take(self) -> bool:
        try:
            chunk = self._end.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            raise GoneError(f"it is gone ({error.strerror})") from None
        if not chunk:
            raise GoneError("it has ended")
        self._incoming += chunk
        while len(self._incoming) >= _PREFIX.size:
            head, body = _PREFIX.unpack_from(self._incoming)
            start = _PREFIX.size + head
            if len(self._incoming) < start + body:
                break
            whole = bytes(memoryview(self._incoming)[_PREFIX.size : start + body])
            self.arrived.append((whole[:head], whole[head:]))
            del self._incoming[: start + body]
        return True
