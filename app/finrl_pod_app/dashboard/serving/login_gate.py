"""ASGI middleware that asks other machines for the password before they reach any page, file or WebSocket.

The login page is served at the address asked for, and a correct password returns there. The cookie is SameSite=Strict:
browsers omit it where a link of another site is followed, so such a request is repeated from a page of this server.
"""

from __future__ import annotations

import html
import ipaddress
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

from finrl_pod.errors import SetupError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.logins import LIFETIME, Logins
from finrl_pod_app.dashboard.passwords import PasswordGuard, PasswordRefused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = ("/_stcore/health",)
MAX_FORM_BYTES = 4096
FORM = "application/x-www-form-urlencoded"
_POLICY_VIOLATION = 1008  # close code of a WebSocket
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in · finrl_pod</title><style>{style}</style></head>
<body><main data-testid="stMainBlockContainer"><h1>finrl_pod</h1>{message}
<form method="post"><label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required autofocus>
<button type="submit">Log in</button></form></main></body></html>
"""
_REPEAT = '<!DOCTYPE html><html lang="en"><meta http-equiv="refresh" content="0"><title>finrl_pod</title></html>'


class LoginGate:
    """Admit visitors with a valid login, and answer others with the login page.

    cookie: name of the cookie. behind_proxy: the last entry of X-Forwarded-For is the address of the visitor, and
    X-Forwarded-Proto the scheme, where a link comes from this machine.
    """

    def __init__(
        self, app: ASGIApp, logins: Logins, guard: PasswordGuard, *, cookie: str, behind_proxy: bool = False
    ) -> None:
        self._app = app
        self._logins = logins
        self._guard = guard
        self._cookie = cookie
        self._behind_proxy = behind_proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        scope = {**scope, "client": (self._visitor(scope, headers), 0), "scheme": self._scheme(scope, headers)}
        token = self._token(headers)
        if self._logins.is_valid(token):
            await self._app(
                scope, self._until_logout(receive, token) if scope["type"] == "websocket" else receive, send
            )
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})  # before accept: answered with 403
        elif scope["method"] == "POST" and headers.get("content-type", "").startswith(FORM):
            await self._log_in(scope, receive, send)
        elif "text/html" not in headers.get("accept", ""):
            await _answer(send, 401, "log in first\n", "text/plain")
        elif headers.get("sec-fetch-site") == "cross-site":
            await _answer(send, 200, _REPEAT)
        else:
            await _answer(send, 401, login_page())

    def _visitor(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """IP address of the visitor."""
        peer = _peer(scope)
        last_entry = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        return last_entry if self._is_forwarded(peer) and _is_address(last_entry) else peer

    def _scheme(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """The scheme under which the browser reaches the server."""
        scheme = str(scope.get("scheme", "http"))
        is_secure = headers.get("x-forwarded-proto") == "https" and self._is_forwarded(_peer(scope))
        return {"http": "https", "ws": "wss"}.get(scheme, scheme) if is_secure else scheme

    def _is_forwarded(self, peer: str) -> bool:
        return self._behind_proxy and _is_address(peer) and ipaddress.ip_address(peer).is_loopback

    def _token(self, headers: Mapping[str, str]) -> str:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return "" if morsel is None else morsel.value

    def _until_logout(self, receive: Receive, token: str) -> Receive:
        """Messages of a WebSocket until its login has ended."""

        async def receive_while_valid() -> Message:
            message = await receive()
            return (
                message if self._logins.is_valid(token) else {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
            )

        return receive_while_valid

    async def _log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.concurrency import run_in_threadpool

        text = await _submitted_password(receive)
        try:
            await run_in_threadpool(self._guard.check, text, scope["client"][0])
            token = await run_in_threadpool(self._logins.start)
        except (PasswordRefused, SetupError) as error:
            await _answer(send, 401, login_page(str(error)))
            return
        secure = "; Secure" if scope["scheme"] == "https" else ""
        cookie = f"{self._cookie}={token}; Path=/; Max-Age={LIFETIME}; HttpOnly; SameSite=Strict{secure}"
        query = scope.get("query_string", b"").decode("latin-1")
        # One slash: a path that starts with two would name another host.
        address = f"/{quote(scope['path'].lstrip('/'))}{'?' if query else ''}{query}"
        await _answer(send, 303, "", headers={"set-cookie": cookie, "location": address})


def login_page(message: str = "") -> str:
    """The login page with a message above its form."""
    alert = f'<p role="alert" data-testid="stAlert">{html.escape(message)}</p>' if message else ""
    return _PAGE.format(style=theme.login_css(), message=alert)


def _peer(scope: Scope) -> str:
    """Address of the other end of the link, which may be a proxy."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


async def _submitted_password(receive: Receive) -> str:
    """The field `password` of a form; empty if it is missing or the form too large."""
    body = b""
    while len(body) <= MAX_FORM_BYTES:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return str(parse_qs(body.decode("utf-8", "replace")).get("password", [""])[0])
    return ""


async def _answer(
    send: Send, status: int, text: str, kind: str = "text/html", headers: Mapping[str, str] | None = None
) -> None:
    body = text.encode()
    values = {
        "content-type": f"{kind}; charset=utf-8",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        "referrer-policy": "same-origin",  # no-referrer would send the form from the origin "null"
        **(headers or {}),
    }
    lines = [(name.encode(), value.encode("latin-1")) for name, value in values.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
