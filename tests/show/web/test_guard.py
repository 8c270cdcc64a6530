"""Nobody gets in without the token, by another name, or to write; and nothing in an answer can do harm."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.show.web.conftest import TOKEN

from undertow.show.web import server
from undertow.show.web.app import build_app
from undertow.show.web.guard import LOOPBACK, new_token
from undertow.show.web.server import Dashboard


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/run?run=sick", "/static/main.js", "/no/such/page"])
def test_without_the_token_nothing_is_answered(stranger: TestClient, path: str) -> None:
    assert stranger.get(path).status_code == 403
    assert stranger.get(path, params={"token": TOKEN[:-1]}).status_code == 403
    assert stranger.get(path, headers={"cookie": "undertow-a-toke=x"}).status_code == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(stranger: TestClient) -> None:
    answer = stranger.get("/", params={"token": TOKEN, "other": "1"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "./?other=1"  # relative: right behind a path prefix
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert cookie.startswith("undertow-7007-")
    assert TOKEN not in cookie  # it goes to other ports of this host, too
    assert stranger.get("/").status_code == 200
    assert stranger.get("/api/runs").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[", "localhost@evil.example", "a b"])
def test_a_foreign_host_is_refused_even_with_the_token(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:81", "127.0.0.1:7007", "[::1]:7007"])
def test_loopback_has_several_names_and_a_tunnel_any_port(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers={"host": host}, params={"token": TOKEN}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_there_is_nothing_to_write(client: TestClient, method: str) -> None:
    for path in ("/", "/api/runs", "/static/main.js"):
        assert client.request(method, path).status_code == 405


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/style.css", "/api/run", "/nothing"])
def test_every_answer_forbids_foreign_and_inline_code(client: TestClient, path: str) -> None:
    policy = client.get(path).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert "unsafe" not in policy
    assert "http" not in policy


def test_an_endless_address_is_refused(client: TestClient) -> None:
    assert client.get("/api/runs?" + "x" * 8_001).status_code == 414
    assert client.get("/api/runs?" + "x" * 8_000).status_code == 200


def test_where_every_usual_port_is_taken_a_free_one_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_TRIES", 0)
    with server._listen("127.0.0.1", None) as listener:
        assert listener.getsockname()[1] > 1023


def test_tokens_are_long_and_differ() -> None:
    assert new_token() != new_token()
    assert len(new_token()) >= 32


def test_a_name_that_was_allowed_is_answered(root: Path) -> None:
    with TestClient(build_app(root, TOKEN, (*LOOPBACK, "Proxy.example")), base_url="http://proxy.example") as client:
        assert client.get("/api/runs", params={"token": TOKEN}).status_code == 200


def test_a_dashboard_for_the_network_knows_the_names_of_its_machine(root: Path) -> None:
    dashboard = Dashboard(root, "0.0.0.0", 0)
    try:
        assert f"//{socket.gethostname()}:{dashboard.port}/" in dashboard.address()
        with TestClient(dashboard._app, base_url=f"http://{socket.gethostname()}") as client:
            assert client.get("/api/runs", params={"token": dashboard.token}).status_code == 200
            assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 421
    finally:
        dashboard._socket.close()


def test_a_code_opens_the_door_once(root: Path) -> None:
    app = build_app(root, TOKEN)
    code = app.new_code()
    for status in (303, 403):
        with TestClient(app, base_url="http://127.0.0.1:7007", follow_redirects=False) as client:
            assert client.get("/api/runs", params={"code": code}).status_code == 403
            assert client.get("/", params={"code": code}).status_code == status
            assert client.get("/").status_code == (200 if status == 303 else 403)
