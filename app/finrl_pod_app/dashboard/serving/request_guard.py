"""ASGI middleware around Streamlit: host names, origins, closed endpoints and security headers.

Streamlit checks the Host header of WebSockets only, admits WebSockets without an Origin header and sets no security
headers. This middleware runs before all routes of Streamlit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Scripts of Streamlit are inline and compile code; nothing may be fetched from or sent to another server.
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
# Statistics of the process and an interface for agents: the dashboard does not use them.
CLOSED_PATHS = ("/_stcore/metrics", "/_stcore/agent", "/_stcore/script-health-check", "/st-metrics")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
DEFAULT_PORTS = {"http": 80, "https": 443}
_POLICY_VIOLATION = 1008  # close code of a WebSocket


class RequestGuard:
    """Refuse requests under foreign host names or from foreign origins, and add security headers to responses.

    hosts: names and addresses under which browsers reach the server directly, over HTTP. proxy_hosts: names under which
    a proxy forwards them, over HTTP or HTTPS. An origin must have the port of the Host header. Headers that
    the application sets itself are kept.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], proxy_hosts: Sequence[str] = ()) -> None:
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
        host_and_port = _split_host(host)
        if host_and_port is None or host_and_port[0] not in self._schemes:
            return 400, "unknown host name; start the dashboard with --host NAME to allow it"
        path = scope["path"].rstrip("/")
        if any(path == closed_path or path.startswith(f"{closed_path}/") for closed_path in CLOSED_PATHS):
            return 404, "not found"
        origin = _single_header(scope, b"origin")
        if scope["type"] == "websocket":
            return None if self._is_own(origin, host_and_port) else (403, "foreign origin")
        if scope["method"] not in SAFE_METHODS and origin is not None and not self._is_own(origin, host_and_port):
            return 403, "foreign origin"
        return None

    def _is_own(self, origin: str | None, host: tuple[str, int | None]) -> bool:
        """True if the Origin header is one of the addresses of this server. host: name and port of the Host header."""
        name, port = host
        try:
            address = urlsplit(origin or "")
            origin_port = address.port
        except ValueError:
            return False
        if address.scheme not in self._schemes[name] or address.hostname != name or f"{address.path}{address.query}":
            return False
        default = DEFAULT_PORTS[address.scheme]
        return (origin_port or default) == (port or default)


def _single_header(scope: Scope, name: bytes) -> str | None:
    """The value of a header; None if it is missing or given more than once."""
    values = [value for key, value in scope["headers"] if key.lower() == name]
    return str(values[0].decode("latin-1")) if len(values) == 1 else None


def _split_host(header: str | None) -> tuple[str, int | None] | None:
    """(name in lower case, port) of a Host header; None if it is missing or malformed."""
    try:
        address = urlsplit(f"//{header or ''}")
        port = address.port
    except ValueError:
        return None
    extra = (address.path, address.query, address.fragment, address.username, address.password)
    if not address.hostname or any(extra) or "@" in str(header):
        return None
    return address.hostname.rstrip("."), port


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {key.lower() for key, _ in message.get("headers", ())}
            extra = [(key.encode(), value.encode()) for key, value in HEADERS.items() if key.encode() not in present]
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return send_with_headers


async def _answer(send: Send, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    send_with_headers = _with_headers(send)
    await send_with_headers({"type": "http.response.start", "status": status, "headers": headers})
    await send_with_headers({"type": "http.response.body", "body": body})
