"""The dashboard's server: settings, address checks, and start and end of the process."""

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
from finrl_pod_app.dashboard.actions import access
from finrl_pod_app.dashboard.serving import server
from finrl_pod_app.dashboard.settings import HOSTS_VARIABLE, Settings

from finrl_pod.errors import InputError, SetupError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_settings_round_trip_through_the_environment(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "runs", (tmp_path / "a" / "journal.sqlite", tmp_path / "b.sqlite"))
    assert Settings.from_environment(settings.to_environment()) == settings
    assert Settings.from_environment({}) == Settings()


@pytest.mark.parametrize(
    ("ip_address", "hosts", "address", "has_name"),
    [
        (None, "", "127.0.0.1", True),
        ("192.0.2.7", "", "192.0.2.7", False),
        (None, "dash.example.org", access.VIA_PROXY, False),
        ("192.0.2.7", "dash.example.org", "192.0.2.7", False),
    ],
)
def test_visitors_behind_a_proxy_have_no_default_name(
    monkeypatch: pytest.MonkeyPatch, ip_address: str | None, hosts: str, address: str, has_name: bool
) -> None:
    monkeypatch.setattr(access, "st", SimpleNamespace(context=SimpleNamespace(ip_address=ip_address)))
    monkeypatch.setenv(HOSTS_VARIABLE, hosts)
    assert access.visitor_address() == address
    assert bool(access.default_user_name()) == has_name


def test_find_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(tmp_path / "runs")
    assert settings.find_journals() == ()
    for age, name in ((20, "old"), (10, "new")):
        folder = tmp_path / "runs" / "paper" / name
        folder.mkdir(parents=True)
        (folder / "journal.sqlite").touch()
        os.utime(folder / "journal.sqlite", (time.time() - age,) * 2)
    new, old = (tmp_path / "runs" / "paper" / name / "journal.sqlite" for name in ("new", "old"))
    assert settings.find_journals() == (new, old)
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "journal.sqlite").touch()
    assert settings.find_journals() == (Path("paper") / "journal.sqlite", new, old)
    assert [settings.account_name(path) for path in settings.find_journals()] == [
        "paper", "runs/paper/new", "runs/paper/old"
    ]  # fmt: skip
    assert Settings(journals=(tmp_path / "gone",)).find_journals() == (tmp_path / "gone",)


@pytest.mark.parametrize("address", ["0.0.0.0", "192.168.1.5", "::"])
def test_other_addresses_need_a_password(address: str) -> None:
    with pytest.raises(InputError, match="needs a password"):
        server.check_address(address)


def test_proxy_hosts_need_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match=r"--host dash\.example\.org allows access by other machines and needs a password"
    ):
        server.check_address("127.0.0.1", ["dash.example.org"])
    with pytest.raises(InputError, match="without scheme and port, got 'https://x'"):
        server.check_address("127.0.0.1", ["https://x"])
    monkeypatch.setattr(server.Password, "is_set", True)
    server.check_address("127.0.0.1", ["dash.example.org"])


@pytest.mark.parametrize(
    ("address", "hosts", "host_header", "allowed"),
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
def test_allowed_host_headers(
    monkeypatch: pytest.MonkeyPatch, address: str, hosts: tuple[str, ...], host_header: str, allowed: bool
) -> None:
    from streamlit import config
    from streamlit.web.server.starlette.starlette_websocket import is_host_allowed

    def interface(family: int, number: str) -> SimpleNamespace:
        return SimpleNamespace(family=family, address=number)

    interfaces = {"eth0": [interface(socket.AF_INET, "10.1.2.3"), interface(socket.AF_INET6, "fe80::1%eth0")]}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: interfaces)
    hosts_option = server.streamlit_options(address, 8501, hosts)["server.allowedHosts"]
    monkeypatch.setattr(config, "get_option", lambda _: hosts_option)
    assert is_host_allowed(host_header) is allowed


def test_address_must_be_an_ip_address() -> None:
    with pytest.raises(InputError, match=r"must be an IP address such as 127\.0\.0\.1"):
        server.check_address("example.org")


def test_port_in_use_is_refused() -> None:
    with socket.socket() as used_port:
        used_port.bind(("127.0.0.1", 0))
        used_port.listen()
        port = used_port.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} on 127.0.0.1 cannot be used"):
            server.check_port("127.0.0.1", port)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUIRED_PACKAGES", ("no_such_package",))
    with pytest.raises(SetupError, match=r"pip install 'finrl-pod\[dashboard\]'"):
        server.serve(Settings(), "127.0.0.1", free_port())


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_the_server_with_exit_code_zero(tmp_path: Path, ending: signal.Signals) -> None:
    port = free_port()
    command = [sys.executable, "-m", "finrl_pod_app.cli.main", "dashboard", "--port", str(port), "--runs", "runs"]
    # To a file: an unread pipe could fill up.
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env={**os.environ})
        try:
            _wait_until_healthy(port, process)
        finally:
            process.send_signal(ending)
            code = process.wait(20)
        log.seek(0)
        assert code == 0, log.read()
    assert not (tmp_path / "runs").exists()  # serving writes nothing


def _wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2) as answer:
                assert answer.read() == b"ok"
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no healthy server, exit code {process.poll()}")
