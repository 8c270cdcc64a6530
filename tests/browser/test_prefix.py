"""Behind a proxy that serves the dashboard under a path of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from undertow.show.web.app import build_app

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PREFIX = "/user/somebody/proxy/7007"


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    app = build_app(folder, "token")

    async def proxy(scope: dict[str, Any], receive: Any, send: Any) -> None:
        assert scope["path"].startswith(PREFIX)
        path = scope["path"].removeprefix(PREFIX)
        await app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # whoever calls before the server is ready waits
    server = uvicorn.Server(
        uvicorn.Config(proxy, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)  # type: ignore[arg-type]
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}{PREFIX}/?token=token"
    server.should_exit = True
    thread.join(30)
    listener.close()


def test_everything_is_found_behind_a_prefix(browser: Browser, address: str) -> None:
    page = browser.new_page()
    refused: list[str] = []
    page.on("response", lambda answer: refused.append(answer.url) if answer.status >= 400 else None)
    page.goto(address)
    page.get_by_role("link", name="sick one").click()
    page.get_by_role("heading", name="critical").wait_for()
    page.locator(".heatmap").wait_for()
    page.close()
    assert refused == []
