"""Who may ask, and what an answer may do: host, token, method, and the headers that keep a page harmless."""

import hmac
import ipaddress
import secrets
import time
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LONGEST_QUERY = 8_000
_CODE_SECONDS = 120.0
_HEADERS = {
    # Nothing from elsewhere, no script or style in the page itself: a name that holds markup stays text.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def new_token() -> str:
    return secrets.token_urlsafe(24)


class Guard:
    """Around the whole application. A token or a code in the address becomes a cookie, and leaves the address.

    Browsers send cookies to every port of a host, so the cookie holds a secret of its own and never the token.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: tuple[str, ...] = LOOPBACK) -> None:
        self._app = app
        self._token = token
        self._hosts = {host.casefold() for host in hosts}
        self._session = new_token()
        self._codes: dict[str, float] = {}  # until when each may be exchanged

    def new_code(self) -> str:
        code = new_token()
        self._codes[code] = time.monotonic() + _CODE_SECONDS
        return code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        answer = self._app if refusal is None else refusal

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        query = scope["query_string"]
        host, port = _host_and_port(headers.get("host", ""))
        own_address, own_port = scope.get("server") or ("", None)
        # A page of a foreign name that points here still sends that name: an address cannot be forged so.
        if host not in self._hosts and not _same_address(host, own_address):
            return _say(421, "This name is not served here. `undertow serve --allow-host NAME` allows it.")
        if scope["method"] not in ("GET", "HEAD"):
            return _say(405, "This server is read-only: it takes GET requests.")
        if len(query) > _LONGEST_QUERY:
            return _say(414, "This address is too long.")
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        given = dict(fields)
        # Two dashboards must not take each other's cookie: tunnels differ in the first port, proxies in the second.
        cookie = f"undertow-{port}-{own_port}"
        is_entry = scope["path"] in ("", "/")
        if _equal(given.get("token", ""), self._token):
            return self._welcome(fields, cookie) if is_entry else None
        if is_entry and self._codes.pop(given.get("code", ""), 0.0) > time.monotonic():
            return self._welcome(fields, cookie)
        if _equal(_cookie(headers.get("cookie", ""), cookie), self._session):
            return None
        return _say(403, "Open the address that `undertow serve` printed: it holds the token that this page needs.")

    def _welcome(self, fields: list[tuple[str, str]], cookie: str) -> Response:
        rest = urlencode([field for field in fields if field[0] not in ("token", "code")])
        # Relative, so that it holds behind a path prefix, too.
        response = RedirectResponse(f"./?{rest}" if rest else "./", status_code=303)
        response.set_cookie(cookie, self._session, path="/", httponly=True, samesite="strict")
        return response


def _equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


def _say(status: int, text: str) -> Response:
    return PlainTextResponse(text + "\n", status)


def _host_and_port(header: str) -> tuple[str, int]:
    """Without brackets; empty if there is none to understand."""
    try:
        parts = urlsplit(f"//{header}")
        return (parts.hostname or "").casefold(), parts.port or 80
    except ValueError:
        return "", 80


def _same_address(host: str, own: str) -> bool:
    """Whether `host` is the very address at which the request arrived."""
    try:
        asked, here = ipaddress.ip_address(host), ipaddress.ip_address(own)
    except ValueError:
        return False
    return asked in (here, getattr(here, "ipv4_mapped", None))


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value
