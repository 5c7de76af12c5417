"""ASGI middleware around Streamlit: host names, origins, closed endpoints and security headers.

Streamlit checks the Host header of WebSockets only, admits WebSockets without an Origin header and sets no security
headers. This middleware runs before all of Streamlit's routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Streamlit's scripts are inline and compile code; nothing may be fetched from or sent to another server.
CONTENT_SECURITY_POLICY = (
    "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
# Statistics of the process and an interface for agents, which the dashboard does not use.
CLOSED_PATHS = ("/_stcore/metrics", "/_stcore/agent", "/_stcore/script-health-check", "/st-metrics")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
DEFAULT_PORTS = {"http": 80, "https": 443}
_POLICY_VIOLATION = 1008  # close code of a WebSocket


class RequestGuard:
    """Refuse requests under foreign host names or from foreign origins, and add security headers to responses.

    hosts: names and addresses under which browsers reach the server directly, over HTTP. proxy_hosts: names under which
    a proxy forwards them, over HTTP or HTTPS. The port of an origin must be that of the Host header. A response's own
    headers are kept.
    """

    def __init__(self, app: App, hosts: Sequence[str], proxy_hosts: Sequence[str] = ()) -> None:
        self._app = app
        self._schemes: dict[str, tuple[str, ...]] = {host.lower(): ("http",) for host in hosts}
        self._schemes |= {host.lower(): ("http", "https") for host in proxy_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})  # before accept: answered with 403
        else:
            await _answer(send, *refusal)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason for refusing a connection; None to admit it."""
        host = _single_header(scope, b"host")
        place = _split_host(host)
        if place is None or place[0] not in self._schemes:
            return 400, "unknown host name; start the dashboard with --host NAME to allow it"
        path = scope["path"].rstrip("/")
        if any(path == closed or path.startswith(f"{closed}/") for closed in CLOSED_PATHS):
            return 404, "not found"
        origin = _single_header(scope, b"origin")
        if scope["type"] == "websocket":
            return None if self._is_own(origin, place) else (403, "foreign origin")
        if scope["method"] not in SAFE_METHODS and origin is not None and not self._is_own(origin, place):
            return 403, "foreign origin"
        return None

    def _is_own(self, origin: str | None, host: tuple[str, int | None]) -> bool:
        """Whether an Origin header is that of a page of this server. host: name and port of the Host header."""
        name, port = host
        try:
            parts = urlsplit(origin or "")
            origin_port = parts.port
        except ValueError:
            return False
        if parts.scheme not in self._schemes[name] or parts.hostname != name or f"{parts.path}{parts.query}":
            return False
        default = DEFAULT_PORTS[parts.scheme]
        return (origin_port or default) == (port or default)


def _single_header(scope: Scope, name: bytes) -> str | None:
    """The value of a header; None if it is missing or given more than once."""
    values = [value for key, value in scope["headers"] if key.lower() == name]
    return str(values[0].decode("latin-1")) if len(values) == 1 else None


def _split_host(header: str | None) -> tuple[str, int | None] | None:
    """(name in lower case, port) of a Host header; None if it is missing or malformed."""
    try:
        parts = urlsplit(f"//{header or ''}")
        port = parts.port
    except ValueError:
        return None
    extra = (parts.path, parts.query, parts.fragment, parts.username, parts.password)
    if not parts.hostname or any(extra) or "@" in str(header):
        return None
    return parts.hostname.rstrip("."), port


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            present = {key.lower() for key, _ in message.get("headers", ())}
            added = [(key.encode(), value.encode()) for key, value in HEADERS.items() if key.encode() not in present]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return send_with_headers


async def _answer(send: Send, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    guarded = _with_headers(send)
    await guarded({"type": "http.response.start", "status": status, "headers": headers})
    await guarded({"type": "http.response.body", "body": body})
