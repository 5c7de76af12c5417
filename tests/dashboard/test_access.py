"""Access: login, network exposure, origin checks, escaping, and pages that write nothing."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.dashboard.actions import access
from finrl_pod_app.dashboard.script.main import PAGES
from finrl_pod_app.dashboard.serving import server as server_module
from finrl_pod_app.dashboard.settings import JOURNAL_VARIABLE, RUNS_VARIABLE
from streamlit.testing.v1 import AppTest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store
from tests.dashboard.dashboard_process import DashboardProcess

pytestmark = pytest.mark.slow

NOW = datetime(2024, 1, 2, tzinfo=UTC)
EVIL = "http://evil.example"
MARKUP = "<img src=x onerror=alert(1)> [a](javascript:alert(1)) **bold** $x$ :red[y]"
FORMULA = '=HYPERLINK("http://evil.example")'


@pytest.fixture
def page_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the runs and the journal of the pages."""
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path / "runs"))
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "paper" / "journal.sqlite"))
    return tmp_path


def file_hashes(folder: Path) -> dict[str, str]:
    return {
        str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.rglob("*") if f.is_file()
    }


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.5"])
def test_other_addresses_need_a_password(page_data: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dashboard", "--address", address, "--port", "1"]) == 2
    error = capsys.readouterr().err
    assert "set one with finrl-pod dashboard set-password" in error
    assert len(error.splitlines()) == 1


def test_is_local_only_by_address_and_proxy_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, own in (("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), (None, False)):
        monkeypatch.setattr(access.st, "get_option", lambda name, value=address: value)
        assert access.is_local_only() is own
    monkeypatch.setattr(access.st, "get_option", lambda _: "127.0.0.1")
    monkeypatch.setenv("FINRL_POD_DASHBOARD_HOSTS", "dash.example.org")
    assert not access.is_local_only(), "a proxy forwards other machines"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    with DashboardProcess(tmp_path_factory.mktemp("served")) as process:
        yield process


def test_server_listens_on_loopback_only(server: DashboardProcess) -> None:
    connections = psutil.Process(server.pid).net_connections(kind="tcp")
    assert {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def test_websocket_rejects_other_origins(server: DashboardProcess) -> None:
    address = f"ws://127.0.0.1:{server.port}/_stcore/stream"
    with connect(address, origin=server.url, proxy=None):  # type: ignore[arg-type]
        pass
    for origin in (EVIL, "null", None, f"https://127.0.0.1:{server.port}", "http://127.0.0.1:1"):
        with pytest.raises(InvalidStatus), connect(address, origin=origin, proxy=None):  # type: ignore[arg-type]
            pass


def test_pages_are_not_served_under_other_host_names(server: DashboardProcess) -> None:
    assert status_of(server, "GET", "/", {}) == 200
    assert status_of(server, "GET", "/", {"Host": f"evil.example:{server.port}"}) == 400


@pytest.mark.parametrize("path", ["/_stcore/metrics", "/_stcore/agent/openapi.json"])
def test_unused_endpoints_are_closed(server: DashboardProcess, path: str) -> None:
    assert status_of(server, "GET", path, {}) == 404


def test_reports_need_a_signed_address(server: DashboardProcess) -> None:
    assert status_of(server, "GET", "/report?name=mine", {}) == 403
    assert status_of(server, "GET", "/report?name=mine&key=0", {}) == 403


def test_websocket_rejects_other_host_names(server: DashboardProcess) -> None:
    """Otherwise a foreign host name pointing here (DNS rebinding) would share the server's origin."""
    for host, allowed in ((f"127.0.0.1:{server.port}", True), ("evil.example", False)):
        key = {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Origin": f"http://{host}", **key}
        status = status_of(server, "GET", "/_stcore/stream", {"Host": host, **upgrade})
        assert (status == 101) is allowed, (host, status)


def test_upload_without_xsrf_token_is_rejected(server: DashboardProcess) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="f"; filename="../../x"\r\n\r\nx\r\n--b--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert status_of(server, "PUT", "/_stcore/upload_file/session/file", kind, body) in (400, 403)


def test_upload_size_is_limited() -> None:
    options = server_module.streamlit_options("127.0.0.1", 1)
    assert options["server.maxUploadSize"] == server_module.MAX_UPLOAD_MB <= 200
    assert options["server.enableXsrfProtection"] is True


@pytest.mark.parametrize("name", PAGES)
def test_pages_write_nothing(page_data: Path, name: str) -> None:
    store = Store.create_or_open(page_data / "paper" / "journal.sqlite")
    store.add(schema.alerts, NOW, level="info", kind="test", message="kept")
    store.close()
    (page_data / "runs" / "broken").mkdir(parents=True)
    (page_data / "runs" / "broken" / "report.json").write_text("no json")
    before = file_hashes(page_data)
    for _ in range(2):
        app = draw(name)
        assert not app.exception
    assert file_hashes(page_data) == before


def test_text_from_files_is_escaped(page_data: Path) -> None:
    """Journal text is not interpreted as Markdown or HTML, nor as a formula by spreadsheets."""
    store = Store.create_or_open(page_data / "paper" / "journal.sqlite")
    store.bind("account", MARKUP)
    store.add(schema.risk_states, NOW, state="halted", reason=MARKUP)
    store.add(schema.alerts, NOW, level="critical", kind="mismatch", message=FORMULA)
    store.close()
    app = draw("paper")
    assert not app.exception
    app.session_state["view"] = "Log"
    app.run()
    assert not app.exception
    texts = [element.value for kind in (app.markdown, app.caption, app.warning, app.error) for element in kind]
    assert any("onerror" in text for text in texts)
    for text in texts:
        assert "<img" not in text.replace("\\<", "")
        assert "](javascript" not in text
        assert "**bold**" not in text
    cells = [value for frame in app.dataframe for value in frame.value.to_numpy().ravel() if isinstance(value, str)]
    assert f"'{FORMULA}" in cells
    assert FORMULA not in cells


def status_of(
    server: DashboardProcess, method: str, path: str, headers: dict[str, str], body: bytes | None = None
) -> int:
    """HTTP status of one request."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request(method, path, body, {"Connection": "close", **headers})
        with connection.getresponse() as response:
            return response.status


def draw(name: str) -> AppTest:
    """Draw one page as the script does."""

    def script(name: str) -> None:
        import functools
        import os

        import streamlit as st
        from finrl_pod_app.dashboard.script.main import PAGES, draw_page
        from finrl_pod_app.dashboard.settings import Settings

        settings = Settings.from_environment(os.environ)
        pages = {
            key: st.Page(functools.partial(draw_page, key, settings), title=key, url_path=key, default=key == name)
            for key in PAGES
        }
        st.session_state["pages"] = pages
        st.navigation(list(pages.values())).run()

    return AppTest.from_function(script, kwargs={"name": name}, default_timeout=60).run()
