"""Connections that send half a request are ended, so that they never take the place of others."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0  # for a whole request to arrive, from the connection or from the answer before
LONGEST_HEAD = 32_768
MOST_WAITING = 100  # connections; the oldest that waits makes room


class PatientProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, with an end to waiting. Uvicorn ends only connections on which nothing comes."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MOST_WAITING:
            others = cast("set[PatientProtocol]", self.connections) - {self}
            waiting = [(one._deadline.when(), id(one), one) for one in others if one._deadline and one._waits()]
            if waiting:
                min(waiting)[-1]._end()
        self._wait()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(SECONDS, self._end_if_waiting)

    def _waits(self) -> bool:
        return not self.cycle or self.cycle.response_complete

    def _end_if_waiting(self) -> None:
        if self._waits():
            self._end()

    def _end(self) -> None:
        self.connections.discard(self)  # at once: many may connect before the loop says that it is lost
        self.transport.abort()
