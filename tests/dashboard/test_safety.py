"""Who is let in, from where, and that looking changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from argon2 import PasswordHasher
from argon2.profiles import CHEAPEST
from finrl_pod_app.cli.main import run
from finrl_pod_app.dashboard import access, launch, passwords
from finrl_pod_app.dashboard.passwords import Password
from finrl_pod_app.dashboard.script.main import PAGES
from finrl_pod_app.dashboard.settings import JOURNAL_VARIABLE, RUNS_VARIABLE
from streamlit.testing.v1 import AppTest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store
from tests.dashboard.serving import Dashboard

NOW = datetime(2024, 1, 2, tzinfo=UTC)
RIGHT = "correct horse battery"
EVIL = "http://evil.example"
MARKUP = "<img src=x onerror=alert(1)> [a](javascript:alert(1)) **bold** $x$ :red[y]"
FORMULA = '=HYPERLINK("http://evil.example")'


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_hasher", lambda: PasswordHasher.from_parameters(CHEAPEST))


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the pages look at; returns its folder."""
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path / "runs"))
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "paper" / "journal.sqlite"))
    access.guard.cache_clear()
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    return {
        str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.rglob("*") if f.is_file()
    }


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.5"])
def test_another_address_is_refused_without_a_password(
    pages: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dashboard", "--address", address, "--port", "1"]) == 2
    told = capsys.readouterr().err
    assert "set one with finrl-pod dashboard set-password" in told
    assert len(told.splitlines()) == 1


def test_on_another_address_nothing_is_shown_before_the_password(
    pages: Path, cheap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Password().set(RIGHT)
    monkeypatch.setattr(access, "serves_this_machine_alone", lambda: False)
    app = AppTest.from_file(str(launch.SCRIPT), default_timeout=60).run()
    assert [title.value for title in app.title] == ["finrl_pod"]
    app.text_input[0].input("a wrong one")
    app.button[0].click().run()
    assert "wrong password" in app.error[0].value.replace("\\", "")
    assert [title.value for title in app.title] == ["finrl_pod"]
    access.guard.cache_clear()
    app.text_input[0].input(RIGHT)
    app.button[0].click().run()
    assert [title.value for title in app.title] == ["Overview"]


def test_the_server_s_address_decides_and_none_means_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, own in (("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), (None, False)):
        monkeypatch.setattr(access.st, "get_option", lambda name, value=address: value)
        assert access.serves_this_machine_alone() is own
    monkeypatch.setattr(access.st, "get_option", lambda _: "127.0.0.1")
    monkeypatch.setenv("FINRL_POD_DASHBOARD_HOSTS", "dash.example.org")
    assert not access.serves_this_machine_alone(), "a proxy passes other machines on"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with Dashboard(tmp_path_factory.mktemp("served")) as made:
        yield made


def test_it_listens_on_the_loopback_alone(server: Dashboard) -> None:
    own = psutil.Process(server.pid).net_connections(kind="tcp")
    assert {c.laddr.ip for c in own if c.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def test_another_site_s_page_cannot_talk_to_it(server: Dashboard) -> None:
    address = f"ws://127.0.0.1:{server.port}/_stcore/stream"
    with connect(address, origin=server.url, proxy=None):  # type: ignore[arg-type]
        pass
    with pytest.raises(InvalidStatus), connect(address, origin=EVIL, proxy=None):  # type: ignore[arg-type]
        pass


def test_another_name_for_this_machine_is_turned_away(server: Dashboard) -> None:
    """A name of somebody's own that points here (DNS rebinding) would make their page this server's."""
    for host, fine in ((f"127.0.0.1:{server.port}", True), ("evil.example", False)):
        key = {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", **key}
        status = answer(server, "GET", "/_stcore/stream", {"Host": host, **upgrade})
        assert (status == 101) is fine, (host, status)


def test_an_upload_without_the_session_s_token_is_refused(server: Dashboard) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="f"; filename="../../x"\r\n\r\nx\r\n--b--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert answer(server, "PUT", "/_stcore/upload_file/session/file", kind, body) in (400, 403)


def test_uploads_are_limited() -> None:
    options = launch.options("127.0.0.1", 1)
    assert options["server.maxUploadSize"] == launch.UPLOAD_MB <= 200
    assert options["server.enableXsrfProtection"] == "true"


@pytest.mark.parametrize("name", PAGES)
def test_looking_changes_nothing(pages: Path, name: str) -> None:
    store = Store.create_or_open(pages / "paper" / "journal.sqlite")
    store.add(schema.alerts, NOW, level="info", kind="test", message="kept")
    store.close()
    (pages / "runs" / "broken").mkdir(parents=True)
    (pages / "runs" / "broken" / "report.json").write_text("no json")
    before = contents(pages)
    for _ in range(2):
        app = page(name)
        assert not app.exception
    assert contents(pages) == before


def test_what_is_written_in_files_is_shown_as_it_stands(pages: Path) -> None:
    """Text from the journal is neither Markdown nor HTML to the page, nor a formula to a spreadsheet."""
    store = Store.create_or_open(pages / "paper" / "journal.sqlite")
    store.bind("account", MARKUP)
    store.add(schema.risk_states, NOW, state="halted", reason=MARKUP)
    store.add(schema.alerts, NOW, level="critical", kind="mismatch", message=FORMULA)
    store.close()
    app = page("paper")
    assert not app.exception
    app.session_state["sections"] = "Log"
    app.run()
    assert not app.exception
    spoken = [element.value for kind in (app.markdown, app.caption, app.warning, app.error) for element in kind]
    assert any("onerror" in text for text in spoken)
    for text in spoken:
        assert "<img" not in text.replace("\\<", "")
        assert "](javascript" not in text
        assert "**bold**" not in text
    cells = [value for frame in app.dataframe for value in frame.value.to_numpy().ravel() if isinstance(value, str)]
    assert f"'{FORMULA}" in cells
    assert FORMULA not in cells


def answer(server: Dashboard, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> int:
    """Status of one request."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as line:
        line.request(method, path, body, {"Connection": "close", **headers})
        with line.getresponse() as response:
            return response.status


def page(name: str) -> AppTest:
    """One page by itself, as its script draws it."""

    def script(name: str) -> None:
        import functools
        import os

        import streamlit as st
        from finrl_pod_app.dashboard.script.main import PAGES, draw
        from finrl_pod_app.dashboard.settings import Settings

        settings = Settings.read(os.environ)
        shown = {
            key: st.Page(functools.partial(draw, key, settings), title=key, url_path=key, default=key == name)
            for key in PAGES
        }
        st.session_state["pages"] = shown
        st.navigation(list(shown.values())).run()

    return AppTest.from_function(script, kwargs={"name": name}, default_timeout=60).run()
