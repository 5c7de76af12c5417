"""How the dashboard's server is started, and what it refuses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from finrl_pod_app.dashboard import access, launch
from finrl_pod_app.dashboard.settings import HOSTS_VARIABLE, Settings

from finrl_pod.errors import InputError, SetupError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_settings_go_through_the_environment(tmp_path: Path) -> None:
    given = Settings(tmp_path / "runs", tmp_path / "journal.sqlite")
    assert Settings.read(given.variables()) == given
    assert Settings.read({}) == Settings()


@pytest.mark.parametrize(
    ("seen", "hosts", "address", "named"),
    [
        (None, "", "127.0.0.1", True),
        ("192.0.2.7", "", "192.0.2.7", False),
        (None, "dash.example.org", access.THROUGH_A_PROXY, False),
        ("192.0.2.7", "dash.example.org", "192.0.2.7", False),
    ],
)
def test_who_comes_through_a_proxy_is_not_taken_for_the_servers_account(
    monkeypatch: pytest.MonkeyPatch, seen: str | None, hosts: str, address: str, named: bool
) -> None:
    monkeypatch.setattr(access, "st", SimpleNamespace(context=SimpleNamespace(ip_address=seen)))
    monkeypatch.setenv(HOSTS_VARIABLE, hosts)
    assert access.visitor_address() == address
    assert bool(access.default_name()) == named


def test_the_journal_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(tmp_path / "runs")
    assert settings.find_journal() is None
    for age, name in ((20, "old"), (10, "new")):
        folder = tmp_path / "runs" / "paper" / name
        folder.mkdir(parents=True)
        (folder / "journal.sqlite").touch()
        os.utime(folder / "journal.sqlite", (time.time() - age,) * 2)
    assert settings.find_journal() == tmp_path / "runs" / "paper" / "new" / "journal.sqlite"
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "journal.sqlite").touch()
    assert settings.find_journal() == Path("paper") / "journal.sqlite"
    assert Settings(journal=tmp_path / "gone").find_journal() == tmp_path / "gone"


@pytest.mark.parametrize("address", ["0.0.0.0", "192.168.1.5", "::"])
def test_other_machines_are_kept_out(address: str) -> None:
    with pytest.raises(InputError, match="needs a password"):
        launch.check_address(address)


def test_names_that_a_proxy_has_need_a_password_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"--host dash\.example\.org lets other machines in, which needs a password"):
        launch.check_address("127.0.0.1", ["dash.example.org"])
    with pytest.raises(InputError, match="without scheme and port, got 'https://x'"):
        launch.check_address("127.0.0.1", ["https://x"])
    monkeypatch.setattr(launch.Password, "is_set", True)
    launch.check_address("127.0.0.1", ["dash.example.org"])


@pytest.mark.parametrize(
    ("address", "hosts", "asked", "let_in"),
    [
        ("127.0.0.1", (), "[::1]:8501", True),
        ("127.0.0.1", (), "dash.example.org", False),
        ("127.0.0.1", ("dash.example.org",), "dash.example.org", True),
        ("192.168.1.5", (), "192.168.1.5:8501", True),
        ("0.0.0.0", (), "10.1.2.3:8501", True),
        ("::", (), "[fe80::1]:8501", True),
        ("0.0.0.0", (), "evil.example.org:8501", False),
    ],
)
def test_who_asks_for_it_by_its_own_names_is_let_in(
    monkeypatch: pytest.MonkeyPatch, address: str, hosts: tuple[str, ...], asked: str, let_in: bool
) -> None:
    from streamlit import config
    from streamlit.web.server.starlette.starlette_websocket import is_host_allowed

    def interface(family: int, number: str) -> SimpleNamespace:
        return SimpleNamespace(family=family, address=number)

    own = {"eth0": [interface(socket.AF_INET, "10.1.2.3"), interface(socket.AF_INET6, "fe80::1%eth0")]}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: own)
    allowed = launch.options(address, 8501, hosts)["server.allowedHosts"]
    monkeypatch.setattr(config, "get_option", lambda _: allowed)
    assert is_host_allowed(asked) is let_in


def test_a_name_is_no_address() -> None:
    with pytest.raises(InputError, match=r"must be an IP address such as 127\.0\.0\.1"):
        launch.check_address("example.org")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} on 127.0.0.1 cannot be used"):
            launch.check_port("127.0.0.1", port)


def test_a_missing_streamlit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "NEEDS", ("no_such_package",))
    with pytest.raises(SetupError, match=r"pip install 'finrl-pod\[dashboard\]'"):
        launch.serve(Settings(), "127.0.0.1", free_port())


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_told_to_stop(tmp_path: Path, ending: signal.Signals) -> None:
    port = free_port()
    command = [sys.executable, "-m", "finrl_pod_app.cli.main", "dashboard", "--port", str(port), "--runs", "runs"]
    # Its output goes to a file: a pipe that nobody reads could fill.
    with (tmp_path / "log").open("w+") as log:
        server = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env={**os.environ})
        try:
            _wait_until_healthy(port, server)
        finally:
            server.send_signal(ending)
            code = server.wait(20)
        log.seek(0)
        assert code == 0, log.read()
    assert not (tmp_path / "runs").exists()  # looking changes nothing


def _wait_until_healthy(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2) as answer:
                assert answer.read() == b"ok"
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no healthy server, exit code {server.poll()}")
