"""Who may ask, and what an answer may do: host, token, method, and the headers that keep a page harmless."""

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LONGEST_QUERY = 8_000
_COOKIE = "undertow"
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
    """Around the whole application. A token in the address becomes a cookie, and leaves the address."""

    def __init__(self, app: ASGIApp, token: str, hosts: tuple[str, ...] = LOOPBACK) -> None:
        self._app = app
        self._token = token
        self._hosts = {host.casefold() for host in hosts}
        # Cookies do not know ports: two dashboards on one machine must not take each other's.
        self._cookie = f"{_COOKIE}-{token[:6]}"

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
        if _host_name(headers.get("host", "")) not in self._hosts:
            return _say(421, "This name is not served here. `undertow serve --allow-host NAME` allows it.")
        if scope["method"] not in ("GET", "HEAD"):
            return _say(405, "This server is read-only: it takes GET requests.")
        if len(query) > _LONGEST_QUERY:
            return _say(414, "This address is too long.")
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        given = dict(fields).get("token", "")
        if self._is_token(given):
            return self._welcome(fields) if scope["path"] in ("", "/") else None
        if self._is_token(_cookie(headers.get("cookie", ""), self._cookie)):
            return None
        return _say(403, "Open the address that `undertow serve` printed: it holds the token that this page needs.")

    def _welcome(self, fields: list[tuple[str, str]]) -> Response:
        rest = urlencode([field for field in fields if field[0] != "token"])
        # Relative, so that it holds behind a path prefix, too.
        response = RedirectResponse(f"./?{rest}" if rest else "./", status_code=303)
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        return response

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _say(status: int, text: str) -> Response:
    return PlainTextResponse(text + "\n", status)


def _host_name(header: str) -> str:
    """Without port and brackets; empty if there is none to understand."""
    try:
        return (urlsplit(f"//{header}").hostname or "").casefold()
    except ValueError:
        return ""


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value
