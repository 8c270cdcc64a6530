"""Half-sent requests, over real sockets: they end, and nobody else waits for them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.show.web.test_server import Served
from tests.store.small_runs import frame, new_writer

from undertow.show.web.patience import MOST_WAITING, SECONDS

HALVES = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "half a body": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nx",
    "idle": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    writer = new_writer(tmp_path / "one")
    writer.append(frame(0, 3))
    writer.close()
    server = Served(str(tmp_path), "--host", "0.0.0.0")
    yield server
    server.stop()


def connect(served: Served, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=SECONDS + 10)
    connection.sendall(sent)
    return connection


def test_half_a_request_is_ended_even_if_it_trickles(served: Served) -> None:
    opened = [connect(served, half) for half in HALVES.values()]
    until = time.monotonic() + SECONDS + 3
    while time.monotonic() < until:
        for connection in opened[1:3]:
            with contextlib.suppress(OSError):  # ended
                connection.send(b"x")
        time.sleep(0.5)
    for connection in opened:
        connection.settimeout(1)
        with connection, contextlib.suppress(ConnectionError):
            while connection.recv(65536):
                pass


def test_more_half_requests_than_places_keep_nobody_out(served: Served) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(2 * MOST_WAITING):
            opened.enter_context(connect(served, HALVES["half a head"]))
        began = time.monotonic()
        assert served.get("/api/runs").status == 200
        assert time.monotonic() - began < SECONDS / 2


def test_an_endless_head_is_refused(served: Served) -> None:
    with connect(served, b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(("host", "status"), [("127.0.0.2", b"403"), ("127.0.0.3", b"421"), ("evil.example", b"421")])
def test_the_address_at_which_a_request_arrives_is_answered(served: Served, host: str, status: bytes) -> None:
    with socket.create_connection(("127.0.0.2", served.port), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode())
        assert connection.recv(65536).split()[1] == status
