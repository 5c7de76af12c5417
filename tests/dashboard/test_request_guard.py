"""What the server refuses before Streamlit sees it: host names, origins, closed endpoints; and its headers."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
from finrl_pod_app.dashboard.actions import report_route
from finrl_pod_app.dashboard.serving.request_guard import HEADERS, RequestGuard

from tests.dashboard.run_async import run_async

HOSTS = ("localhost", "127.0.0.1", "::1")


async def reached(scope: Any, receive: Any, send: Any) -> None:
    """The application behind the guard."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"referrer-policy", b"origin")]})
    await send({"type": "http.response.body", "body": b"page"})


def connect(kind: str, path: str = "/", method: str = "GET", **headers: str | None) -> list[MutableMapping[str, Any]]:
    """The messages with which the guard answers a connection."""
    named = {"host": "127.0.0.1:8501", **headers}
    scope = {
        "type": kind,
        "path": path,
        "method": method,
        "headers": [(name.encode(), value.encode()) for name, value in named.items() if value is not None],
    }
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    guard = RequestGuard(reached, HOSTS, ("dash.example.org",))
    run_async(guard(scope, None, send))  # type: ignore[arg-type]
    return sent


def status(**parts: Any) -> int:
    return int(connect("http", **parts)[0]["status"])


@pytest.mark.parametrize("host", ["127.0.0.1:8501", "LOCALHOST:8501", "[::1]:8501", "dash.example.org"])
def test_own_hosts_are_served(host: str) -> None:
    assert status(host=host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8501", "127.0.0.1.evil.example:8501", "a@127.0.0.1", "127.0.0.1:x", "", None],
)
def test_foreign_hosts_are_refused(host: str | None) -> None:
    assert status(host=host) == 400
    assert connect("websocket", host=host, origin=f"http://{host}")[0]["type"] == "websocket.close"


@pytest.mark.parametrize(
    ("host", "origin", "accepted"),
    [
        ("127.0.0.1:8501", "http://127.0.0.1:8501", True),
        ("localhost", "http://localhost:80", True),
        ("dash.example.org", "https://dash.example.org", True),
        ("dash.example.org", "http://dash.example.org", True),
        ("127.0.0.1:8501", "http://127.0.0.1:8502", False),
        ("127.0.0.1:8501", "http://localhost:8501", False),
        ("127.0.0.1:8501", "https://127.0.0.1:8501", False),
        ("127.0.0.1:8501", "http://evil.example", False),
        ("127.0.0.1:8501", "http://127.0.0.1:8501/path", False),
        ("127.0.0.1:8501", "null", False),
        ("127.0.0.1:8501", "", False),
        ("127.0.0.1:8501", None, False),
        ("dash.example.org", "https://dash.example.org:444", False),
    ],
)
def test_websockets_need_their_own_origin(host: str, origin: str | None, accepted: bool) -> None:
    answer = connect("websocket", path="/_stcore/stream", host=host, origin=origin)[0]["type"]
    assert answer == ("websocket.accept" if accepted else "websocket.close")
    assert status(method="PUT", host=host, origin=origin) == (200 if accepted or origin is None else 403)


@pytest.mark.parametrize(
    "path", ["/_stcore/metrics", "/_stcore/metrics/", "/_stcore/agent/openapi.json", "/_stcore/script-health-check"]
)
def test_unused_endpoints_are_closed(path: str) -> None:
    assert status(path=path) == 404


def test_security_headers_on_every_answer() -> None:
    for answer in (connect("http")[0], connect("http", host="evil.example")[0]):
        headers = {name.decode(): value.decode() for name, value in answer["headers"]}
        assert set(HEADERS) <= set(headers)
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert dict(connect("http")[0]["headers"])[b"referrer-policy"] == b"origin"  # the application's own is kept


def test_addresses_of_reports_are_signed() -> None:
    url = report_route.report_url("a b/ü")
    name, key = url.removeprefix("/report?name=").split("&key=")
    assert name == "a%20b%2F%C3%BC"
    assert report_route.is_signed("a b/ü", key)
    assert not report_route.is_signed("another", key)
    assert not report_route.is_signed("a b/ü", "")
