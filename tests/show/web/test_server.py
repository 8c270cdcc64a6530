"""`undertow serve` as users call it: its first line, its answers while a run is written, and its end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.store.small_runs import frame, new_writer


class Served:
    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "undertow", "serve", "--no-open", "--port", "0", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().rstrip("\n")
        parts = urlsplit(self.address)
        self._connections: list[http.client.HTTPConnection] = []
        self._answers: list[http.client.HTTPResponse] = []
        self.port, self.token = parts.port or 0, parse_qs(parts.query)["token"][0]

    def get(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self._connections.append(connection)
        separator = "&" if "?" in path else "?"
        connection.request("GET", f"{path}{separator}token={self.token}")
        answer = connection.getresponse()
        self._answers.append(answer)
        return answer

    def stop(self) -> int:
        for opened in (*self._answers, *self._connections):
            opened.close()
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = new_writer(tmp_path / "runs" / "one")
    writer.append(frame(0, 3))
    writer.close()
    return tmp_path / "runs"


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    server = Served(str(folder))
    yield server
    if server.process.poll() is None:
        server.stop()


def test_the_address_comes_first_and_works(served: Served) -> None:
    assert served.address.startswith(f"http://127.0.0.1:{served.port}/?token=")
    assert served.get("/").status == 303
    runs = json.loads(served.get("/api/runs").read())["runs"]
    assert [run["id"] for run in runs] == ["one"]
    assert served.stop() == 130  # interrupted


def events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, object]]]:
    """Id and data of every event."""
    identity = ""
    while line := answer.readline().decode().rstrip("\n"):
        if line.startswith("id: "):
            identity = line[4:]
        elif line.startswith("data: "):
            yield identity, json.loads(line[6:])
            answer.readline()
        elif line.startswith("retry"):
            answer.readline()


def test_a_run_is_followed_while_it_is_written(served: Served, folder: Path) -> None:
    writer = new_writer(folder / "growing")
    writer.append(frame(0, 3))
    news = events(served.get("/api/live?run=growing"))
    identity, first = next(news)
    assert (identity, first["steps"]) == ("0", {"first": 0, "last": 0, "recorded": 1})
    assert first["status"] == "running"
    for number in range(1, 40):
        writer.append(frame(number, 3))
    last = None
    while last is None or last["steps"] != {"first": 0, "last": 39, "recorded": 40}:
        identity, last = next(news)
    assert identity == "39"
    writer.close()


def test_a_run_that_vanishes_is_said_and_the_server_goes_on(served: Served, folder: Path) -> None:
    assert served.get("/api/run?run=nothing").status == 404
    assert served.get("/api/runs").status == 200


def test_one_run_can_be_served_alone(folder: Path) -> None:
    server = Served(str(folder / "one"))
    try:
        assert server.address.endswith("#/run?run=.")
        assert json.loads(server.get("/api/run?run=.").read())["name"] == "test"
    finally:
        server.stop()


def test_a_port_that_is_taken_is_named(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "undertow", "serve", str(folder), "--no-open", "--port", port],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert port in done.stderr
    assert done.stdout == ""


def test_two_dashboards_on_one_port(served: Served, folder: Path) -> None:
    command = [sys.executable, "-m", "undertow", "serve", str(folder), "--no-open", "--port", str(served.port)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 2
    assert str(served.port) in second.stderr
    assert "Traceback" not in second.stderr
    assert served.get("/api/runs").status == 200  # the first one goes on


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "undertow", "serve", str(tmp_path / "nothing" / "here"), "--no-open"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "nothing" in done.stderr
