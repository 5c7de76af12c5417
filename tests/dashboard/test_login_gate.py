"""The login: what is served before it, the cookie, its end, and the address of visitors behind a proxy."""

from __future__ import annotations

import stat
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from argon2 import PasswordHasher
from argon2.profiles import CHEAPEST
from finrl_pod_app.dashboard import passwords
from finrl_pod_app.dashboard.logins import FILE, LIFETIME, Logins
from finrl_pod_app.dashboard.passwords import Password, PasswordGuard
from finrl_pod_app.dashboard.serving.login_gate import LoginGate

from tests.dashboard.run_async import run_async

PASSWORD = "correct horse battery"
COOKIE = "finrl_pod_login_8501"
HTML = "text/html,*/*;q=0.8"
PROXY = ("127.0.0.2", 5000)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Site:
    """A gate before an application that answers "secret" and records the scopes that reach it."""

    def __init__(self, folder: Path, *, behind_proxy: bool = False) -> None:
        self.clock = Clock()
        self.password = Password(folder / "password")
        self.password.set(PASSWORD)
        self.logins = Logins(self.password, self.clock)
        guard = PasswordGuard(self.password, self.clock)
        self.scopes: list[MutableMapping[str, Any]] = []
        self.gate = LoginGate(self._application, self.logins, guard, cookie=COOKIE, behind_proxy=behind_proxy)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            while (await receive())["type"] != "websocket.disconnect":
                await send({"type": "websocket.send", "text": "secret"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"secret"})

    def request(
        self,
        path: str = "/run",
        query: str = "name=good",
        *,
        kind: str = "http",
        method: str = "GET",
        body: bytes = b"",
        client: tuple[str, int] = ("192.0.2.7", 1),
        messages: int = 0,
        **headers: str,
    ) -> list[MutableMapping[str, Any]]:
        """The messages of the answer. messages: number of messages that a WebSocket receives."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        scope = {
            "type": kind,
            "scheme": "http",
            "path": path,
            "query_string": query.encode(),
            "method": method,
            "client": client,
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        }
        sent: list[MutableMapping[str, Any]] = []
        received = iter([{"type": "websocket.receive", "text": ""}] * messages)

        async def receive() -> MutableMapping[str, Any]:
            if kind == "http":
                return {"type": "http.request", "body": body}
            return next(received, {"type": "websocket.disconnect"})

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        run_async(self.gate(scope, receive, send))
        return sent

    def log_in(self, password: str = PASSWORD, **parts: Any) -> list[MutableMapping[str, Any]]:
        body = urlencode({"password": password}).encode()
        return self.request(
            method="POST", body=body, **{"accept": HTML, "content_type": "application/x-www-form-urlencoded", **parts}
        )


def headers_of(answer: list[MutableMapping[str, Any]]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in answer[0]["headers"]}


def cookie_of(answer: list[MutableMapping[str, Any]]) -> str:
    return headers_of(answer)["set-cookie"].partition(";")[0]


@pytest.fixture(autouse=True)
def _cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use fast hash parameters."""
    monkeypatch.setattr(passwords, "_hasher", lambda: PasswordHasher.from_parameters(CHEAPEST))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("cookie", ["", f"{COOKIE}=", f"{COOKIE}=guess", "a=b", f"{COOKIE}=\x7f;;=", "\xe9=\xe9"])
def test_nothing_is_served_before_the_login(site: Site, cookie: str) -> None:
    for path in ("/", "/run", "/static/js/index.js", "/_stcore/upload_file/a/b", "/report"):
        for accept in (HTML, "*/*"):
            answer = site.request(path, cookie=cookie, accept=accept)
            assert answer[0]["status"] == 401
            assert b"secret" not in answer[1]["body"]
    assert site.request("/_stcore/stream", kind="websocket", cookie=cookie)[0]["type"] == "websocket.close"
    assert site.scopes == []
    assert site.request("/_stcore/health")[0]["status"] == 200


def test_the_login_returns_to_the_address_with_a_strict_cookie(site: Site) -> None:
    page = site.request(accept=HTML)[1]["body"].decode()
    assert '<label for="password">Password</label>' in page
    answer = site.log_in()
    assert answer[0]["status"] == 303
    assert headers_of(answer)["location"] == "/run?name=good"
    token, *attributes = headers_of(answer)["set-cookie"].split("; ")
    assert set(attributes) == {"Path=/", "HttpOnly", "SameSite=Strict", f"Max-Age={12 * 3600}"}
    assert site.request(cookie=f"a=b; {token}")[1]["body"] == b"secret"
    assert headers_of(site.log_in(path="//evil.example/x"))["location"] == "/evil.example/x?name=good"


def test_only_a_hash_of_the_token_is_stored(site: Site) -> None:
    token = cookie_of(site.log_in()).partition("=")[2]
    file = site.password.file.with_name(FILE)
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Logins(site.password, site.clock).is_valid(token)  # after a restart of the server


def test_a_login_ends_after_its_lifetime_by_logout_and_with_a_new_password(site: Site) -> None:
    cookie = cookie_of(site.log_in())
    site.clock.now += LIFETIME - 1
    assert site.request(cookie=cookie)[0]["status"] == 200
    site.clock.now += 1
    assert site.request(cookie=cookie)[0]["status"] == 401
    cookie = cookie_of(site.log_in())
    Logins(site.password, site.clock).end(cookie.partition("=")[2])
    assert site.request(cookie=cookie)[0]["status"] == 401
    cookie = cookie_of(site.log_in())
    site.password.set("another password")
    assert site.request(cookie=cookie)[0]["status"] == 401
    site.password.file.unlink()
    assert site.request(cookie=cookie)[0]["status"] == 401


def test_an_open_connection_ends_with_the_login(site: Site) -> None:
    cookie = cookie_of(site.log_in())
    types = [message["type"] for message in site.request(kind="websocket", cookie=cookie, messages=2)]
    assert types == ["websocket.accept", "websocket.send", "websocket.send"]
    is_valid = iter([True, True, False])
    site.logins.is_valid = lambda _: next(is_valid)  # type: ignore[method-assign]
    types = [message["type"] for message in site.request(kind="websocket", cookie=cookie, messages=5)]
    assert types == ["websocket.accept", "websocket.send"]


@pytest.mark.parametrize("body", [b"", b"password=", b"x=1", b"password=\xff", b"password=" + 100_000 * b"x"])
def test_wrong_forms_show_the_page_again(site: Site, body: bytes) -> None:
    answer = site.request(method="POST", body=body, content_type="application/x-www-form-urlencoded")
    assert answer[0]["status"] == 401
    assert b'role="alert"' in answer[1]["body"]


def test_a_link_of_another_site_is_repeated_with_the_cookie(site: Site) -> None:
    """Browsers omit a strict cookie there."""
    answer = site.request(accept=HTML, sec_fetch_site="cross-site")
    assert answer[0]["status"] == 200
    assert b"refresh" in answer[1]["body"]


def test_addresses_behind_a_proxy_are_limited_separately(tmp_path: Path) -> None:
    site = Site(tmp_path, behind_proxy=True)
    other = {"client": PROXY, "x_forwarded_for": "203.0.113.1, 192.0.2.9"}
    assert site.log_in("wrong password", **other)[0]["status"] == 401
    assert b"too soon" in site.log_in(**other)[1]["body"]
    assert site.log_in(client=PROXY)[0]["status"] == 303
    assert site.log_in(client=PROXY, x_forwarded_for="203.0.113.1")[0]["status"] == 303
    # Only a proxy on this machine is believed.
    assert site.log_in("wrong password", x_forwarded_for="192.0.2.8")[0]["status"] == 401
    assert b"too soon" in site.log_in(x_forwarded_for="192.0.2.10")[1]["body"]


def test_pages_know_the_address_and_the_scheme_of_the_visitor(tmp_path: Path) -> None:
    site = Site(tmp_path, behind_proxy=True)
    forwarded = {"client": PROXY, "x_forwarded_for": "192.0.2.9", "x_forwarded_proto": "https"}
    answer = site.log_in(**forwarded)
    assert headers_of(answer)["set-cookie"].endswith("; Secure")
    site.request(cookie=cookie_of(answer), **forwarded)
    assert site.scopes[-1]["client"][0] == "192.0.2.9"
    assert site.scopes[-1]["scheme"] == "https"
    direct = Site(tmp_path / "direct")
    cookie = cookie_of(direct.log_in(client=PROXY, x_forwarded_proto="https"))
    direct.request(cookie=cookie, **forwarded)
    assert direct.scopes[-1]["client"][0] == PROXY[0]
    assert direct.scopes[-1]["scheme"] == "http"
