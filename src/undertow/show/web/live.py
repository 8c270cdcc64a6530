"""News of a run as it is written: server-sent events, which a browser takes up again by itself."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from undertow.errors import UndertowError

_LOOK_SECONDS = 0.5
_REST_SECONDS = 5.0  # between looks at a run that nobody writes: it may be resumed
_SIGN_OF_LIFE_SECONDS = 15.0
_STREAMS_AT_ONCE = 32


class Streams:
    """All pages that follow a run."""

    def __init__(self) -> None:
        self._open = 0

    def follow(self, request: Request, look: Callable[[], dict[str, Any]]) -> Response:
        """Send what `look` returns, at once and whenever it differs from what was sent last."""
        if self._open >= _STREAMS_AT_ONCE:
            return Response("Too many pages follow a run at once.\n", 503, media_type="text/plain")
        headers = {"x-accel-buffering": "no"}  # proxies must hand on every event at once
        return StreamingResponse(self._events(request, look), media_type="text/event-stream", headers=headers)

    async def _events(self, request: Request, look: Callable[[], dict[str, Any]]) -> AsyncGenerator[bytes]:
        self._open += 1
        try:
            yield b"retry: 2000\n\n"
            async for event in _news(request, look):
                yield event
        finally:
            self._open -= 1


async def _news(request: Request, look: Callable[[], dict[str, Any]]) -> AsyncGenerator[bytes]:
    seen = b""
    silent = 0.0
    while not await request.is_disconnected():
        try:
            state = await run_in_threadpool(look)
            news, kind = msgspec.json.encode(state), b"progress"
        except UndertowError as problem:
            state, news, kind = {}, msgspec.json.encode({"problem": problem.message}), b"trouble"
        if news != seen:
            sequence = str(state.get("sequence", "")).encode()
            yield b"event: %s\nid: %s\ndata: %s\n\n" % (kind, sequence, news)
            seen, silent = news, 0.0
        elif silent >= _SIGN_OF_LIFE_SECONDS:
            yield b": still here\n\n"
            silent = 0.0
        pause = _LOOK_SECONDS if state.get("status") == "running" else _REST_SECONDS
        await anyio.sleep(pause)
        silent += pause
