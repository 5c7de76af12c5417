"""Monitoring: masked logs, signed alerts, heartbeat, health and metrics."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from urllib.error import HTTPError

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from finrl_pod.errors import ConfigError, JournalError, SetupError
from finrl_pod.paper.monitoring import alerts as alerts_module
from finrl_pod.paper.monitoring import health
from finrl_pod.paper.monitoring.alerts import Alerts, DeadManPing
from finrl_pod.paper.monitoring.health import STALE_AFTER, HealthServer, Heartbeat
from finrl_pod.paper.monitoring.logs import open_log
from finrl_pod.paper.monitoring.status import read_heartbeat
from tests.fake_alpaca.server_fixtures import wait_until
from tests.paper.factories import SimulatedDaemon

SECRETS = {
    "APCA_API_KEY_ID": "PKABCDEF",
    "APCA_API_SECRET_KEY": "s3cr3tvalue",
    "FINRL_POD_WEBHOOK_SECRET": "hush-hush",
}


def test_secrets_are_masked_anywhere_in_a_log_record(capsys: pytest.CaptureFixture[str]) -> None:
    log = open_log(SECRETS)
    log.warning("refused with s3cr3tvalue", url="https://x/?k=PKABCDEF", more={"a": ["hush-hush", 1]})
    line = capsys.readouterr().err
    assert not any(secret in line for secret in SECRETS.values())
    assert json.loads(line)["event"] == "refused with ***"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("I/O operation on closed file")])
def test_closed_log_stream_raises_nothing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    monkeypatch.setattr(sys, "stderr", Broken())
    open_log({}).critical("alert", kind="test")


def test_webhook_receives_signed_alerts_without_secrets(httpserver: HTTPServer) -> None:
    seen: list[Request] = []

    def receive(request: Request) -> Response:
        request.get_data()
        seen.append(request)
        return Response(status=204)

    httpserver.expect_request("/alerts", method="POST").respond_with_handler(receive)
    alerts = Alerts(httpserver.url_for("/alerts"), open_log(SECRETS), SECRETS)
    alerts.send("critical", "keys", "the key PKABCDEF was refused")
    alerts.close()
    assert len(seen) == 1
    body = seen[0].get_data()
    assert json.loads(body)["message"] == "the key *** was refused"
    at = seen[0].headers["X-Finrl-Pod-Time"]
    expected = hmac.new(b"hush-hush", f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    assert seen[0].headers["X-Finrl-Pod-Signature"] == f"sha256={expected}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what apprise imports
def test_apprise_services_receive_alerts_without_secrets(httpserver: HTTPServer) -> None:
    pytest.importorskip("apprise")
    httpserver.expect_request("/notify", method="POST").respond_with_json({})
    urls = f"json://{httpserver.host}:{httpserver.port}/notify"
    alerts = Alerts("", open_log(SECRETS), {**SECRETS, "FINRL_POD_ALERT_URLS": urls})
    alerts.send("critical", "keys", "the key PKABCDEF was refused")
    assert alerts.close(30.0)
    ((request, _),) = httpserver.log
    sent = json.loads(request.get_data())
    assert (sent["title"], sent["message"]) == ("finrl_pod paper: keys", "the key *** was refused")
    assert sent["type"] == "failure"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what apprise imports
def test_test_alert_tells_which_receiver_accepted_it(httpserver: HTTPServer) -> None:
    """Each gets one marked message; a redirect of a service is not followed."""
    pytest.importorskip("apprise")
    httpserver.expect_request("/a").respond_with_response(Response(status=204))
    httpserver.expect_request("/moved").respond_with_response(Response(status=307, headers={"Location": "/b"}))
    address = f"json://{httpserver.host}:{httpserver.port}"
    environment = {**SECRETS, "FINRL_POD_ALERT_URLS": f"{address}/a {address}/moved"}
    test = alerts_module.send_test_alert(httpserver.url_for("/a"), environment)
    assert [receiver.delivered for receiver in test.receivers] == [True, True, False]
    assert test.receivers[0] == alerts_module.ReceiverTest("webhook", True, "")
    assert "did not accept" in test.receivers[2].detail
    assert sorted(request.path for request, _ in httpserver.log) == ["/a", "/a", "/moved"]
    assert all("test" in json.loads(request.get_data())["message"] for request, _ in httpserver.log)


def test_webhook_redirects_are_not_followed(httpserver: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    httpserver.expect_request("/a").respond_with_response(Response(status=302, headers={"Location": "/b"}))
    alerts = Alerts(httpserver.url_for("/a"), open_log(SECRETS), SECRETS)
    alerts.send("info", "test", "hello")
    alerts.close()
    assert [request.path for request, _ in httpserver.log] == ["/a"]
    assert "alert not delivered" in capsys.readouterr().err


def test_undeliverable_alert_does_not_block(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:  # bound, but not listening
        unused.bind(("127.0.0.1", 0))
        alerts = Alerts(f"http://127.0.0.1:{unused.getsockname()[1]}/", open_log(SECRETS), SECRETS)
        start = time.monotonic()
        alerts.send("warning", "test", "hello")
        assert time.monotonic() - start < 1.0
        alerts.close()
    assert "alert not delivered" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "environment", "expected_message"),
    [("http://example.org/x", SECRETS, "must be"), ("https://example.org/x", {}, "FINRL_POD_WEBHOOK_SECRET")],
)
def test_insecure_or_unsigned_webhook_is_refused(url: str, environment: dict[str, str], expected_message: str) -> None:
    with pytest.raises(ConfigError, match=expected_message):
        Alerts(url, open_log({}), environment)


@pytest.mark.slow
def test_stalled_loop_is_reported_as_unhealthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "deep" / "heartbeat.json"
    heart = Heartbeat(file)
    assert not heart.alive
    with monkeypatch.context() as without_fsync:  # it is written every second
        without_fsync.setattr(os, "fsync", lambda _: pytest.fail("a heartbeat need not outlive a power failure"))
        heart.beat(recovered=True, trading=True)
    assert heart.alive
    assert json.loads(file.read_text())["trading"] is True
    server = HealthServer(0, heart, lambda: {"equity": 123.5, "state": 2.0})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health") as answer:
            assert json.loads(answer.read()) == {"alive": True, "trading": True}
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            text = answer.read().decode()
        assert "finrl_pod_equity 123.5" in text
        assert "# HELP finrl_pod_state 0 active, 1 reducing" in text
        heart.beat(recovered=True, trading=False)  # a halt
        assert json.loads(file.read_text())["trading"] is False
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health") as answer:
            assert json.loads(answer.read()) == {"alive": True, "trading": False}
        monkeypatch.setattr(health, "STALE_AFTER", 0.0)
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health")
        assert refused.value.code == 503
        refused.value.close()
        with pytest.raises(SetupError, match="cannot be used"):
            HealthServer(server.port, heart, dict)
    finally:
        server.close()


def test_systemd_is_notified_of_every_beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        heart = Heartbeat()
        heart.beat(recovered=False, trading=False)
        assert systemd.recv(100) == b"WATCHDOG=1"
        heart.beat(recovered=True, trading=False)
        assert b"READY=1" in systemd.recv(100)


def receiver(httpserver: HTTPServer, failures: int) -> list[str]:
    """A webhook that refuses that many alerts; returns the list of the messages that it gets."""
    seen: list[str] = []

    def receive(request: Request) -> Response:
        seen.append(json.loads(request.get_data())["message"])
        return Response(status=503 if len(seen) <= failures else 204)

    httpserver.expect_request("/alerts", method="POST").respond_with_handler(receive)
    return seen


def test_alert_is_sent_again_until_it_is_accepted(httpserver: HTTPServer, tmp_path: Path) -> None:
    seen = receiver(httpserver, failures=3)
    spool = tmp_path / "alerts.json"
    alerts = Alerts(httpserver.url_for("/alerts"), open_log(SECRETS), SECRETS, spool, first_pause=0.01)
    alerts.send("critical", "test", "hello")
    wait_until(lambda: len(seen) == 4)
    assert alerts.close()
    assert seen == ["hello"] * 4
    assert not spool.exists()


def test_undelivered_alerts_are_kept_for_the_next_process(httpserver: HTTPServer, tmp_path: Path) -> None:
    seen = receiver(httpserver, failures=1)
    address, spool = httpserver.url_for("/alerts"), tmp_path / "alerts.json"
    first = Alerts(address, open_log(SECRETS), SECRETS, spool, first_pause=600.0)
    first.send("critical", "test", "the key PKABCDEF is known")
    wait_until(spool.exists)
    assert not first.close()
    assert "PKABCDEF" not in spool.read_text()
    second = Alerts(address, open_log(SECRETS), SECRETS, spool)
    wait_until(lambda: not spool.exists())
    assert second.close()
    assert seen == ["the key *** is known"] * 2


def slow_receiver(answer: Callable[[socket.socket], None]) -> tuple[str, list[socket.socket]]:
    """A receiver on this machine that answers each connection by `answer`, and its connections so far."""
    server, links = socket.create_server(("127.0.0.1", 0)), []

    def serve() -> None:
        while True:
            links.append(server.accept()[0])
            threading.Thread(target=answer, args=(links[-1],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}", links


def drip(link: socket.socket) -> None:
    """Send a header that never ends."""
    with contextlib.suppress(OSError):
        link.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while True:
            link.sendall(b"a")
            time.sleep(0.02)


def hang(_: socket.socket) -> None:
    """Answer nothing."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what apprise imports
@pytest.mark.parametrize("answer", [drip, hang])
@pytest.mark.parametrize("slow", ["webhook", "apprise"])
def test_receiver_that_never_answers_does_not_delay_another(
    httpserver: HTTPServer, tmp_path: Path, slow: str, answer: Callable[[socket.socket], None]
) -> None:
    seen = receiver(httpserver, failures=0)
    address, links = slow_receiver(answer)
    healthy = f"{httpserver.host}:{httpserver.port}/alerts"
    webhook, url = (f"http://{address}/", f"json://{healthy}") if slow == "webhook" else (
        f"http://{healthy}", f"json://{address}/")  # fmt: skip
    environment = {**SECRETS, "FINRL_POD_ALERT_URLS": url}
    earlier_threads = set(threading.enumerate())
    alerts = Alerts(webhook, open_log(SECRETS), environment, tmp_path / "spool", first_pause=0.01, timeout=1.0)
    for number in range(5):
        alerts.send("info", "test", f"alert {number}")
    wait_until(lambda: len(seen) == 5)
    wait_until(lambda: len(links) > 1)  # tried again all the same
    assert not alerts.close(0.1)
    waiting = json.loads((tmp_path / "spool").read_text())
    assert sorted((row["values"]["message"], len(row["receivers"])) for row in waiting) == [
        (s, 1) for s in sorted(seen)
    ]
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o600
    threads = set(threading.enumerate()) - earlier_threads
    assert sum(thread.name.startswith("alert to") for thread in threads) <= 1 + 1  # none outlives its time
    for link in links:
        link.close()


def test_alert_is_in_the_spool_before_its_first_attempt(httpserver: HTTPServer, tmp_path: Path) -> None:
    spool, spooled = tmp_path / "alerts.json", []

    def keep(_: Request) -> Response:
        spooled.append(spool.read_text())
        return Response(status=204)

    httpserver.expect_request("/alerts", method="POST").respond_with_handler(keep)
    alerts = Alerts(httpserver.url_for("/alerts"), open_log(SECRETS), SECRETS, spool)
    alerts.send("critical", "test", "hello")
    assert alerts.close()
    assert ["hello" in text for text in spooled] == [True]


def test_critical_alerts_pass_waiting_ones(httpserver: HTTPServer, tmp_path: Path) -> None:
    seen, address, spool = receiver(httpserver, failures=0), httpserver.url_for("/alerts"), tmp_path / "alerts.json"
    rows = [
        {"values": {"at": "", "level": level, "kind": "test", "message": f"{level} {number}"}, "receivers": ["webhook"]}
        for number in range(3) for level in ("info", "critical", "warning")
    ]  # fmt: skip
    spool.write_text(json.dumps(rows))
    assert Alerts(address, open_log(SECRETS), SECRETS, spool).close()
    assert seen == [f"{level} {number}" for level in ("critical", "warning", "info") for number in range(3)]


def test_receiver_with_too_many_waiting_alerts_keeps_the_urgent_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "MAX_WAITING", 2)
    alerts = Alerts("http://127.0.0.1:9/", open_log(SECRETS), SECRETS, tmp_path / "spool", first_pause=600.0)
    for level in ("critical", "info", "warning", "critical", "info"):
        alerts.send(level, "test", "hello")
    alerts.close(0.0)
    rows = json.loads((tmp_path / "spool").read_text())
    assert [row["values"]["level"] for row in rows] == ["critical", "critical"]


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}', '[{"values": 1}]'])
def test_damaged_spool_counts_as_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "alerts.json").write_text(content)
    assert Alerts("", open_log({}), {}, tmp_path / "alerts.json").close()


def test_spool_that_is_a_pipe_counts_as_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alerts.json")  # a read would wait forever
    assert Alerts("", open_log({}), {}, tmp_path / "alerts.json").close()


def test_ping_is_sent_only_while_all_is_well(httpserver: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    httpserver.expect_request("/ping/secret").respond_with_data("")
    well = [True]
    ping = DeadManPing(httpserver.url_for("/ping/secret"), 0.01, lambda: well[0], open_log({}))
    wait_until(lambda: len(httpserver.log) > 3)
    well[0] = False
    wait_until(lambda: ping_count(httpserver) == ping_count(httpserver, pause=0.1))
    well[0] = True
    before = len(httpserver.log)
    wait_until(lambda: len(httpserver.log) > before)
    ping.close()
    httpserver.clear()
    failing = DeadManPing(httpserver.url_for("/ping/secret"), 0.01, lambda: True, open_log({}))
    wait_until(lambda: len(httpserver.log) > 1)
    failing.close()
    assert "secret" not in capsys.readouterr().err
    with pytest.raises(ConfigError, match="FINRL_POD_PING_URL must be an https URL"):
        DeadManPing("http://example.org/secret", 1.0, lambda: True, open_log({}))


def ping_count(httpserver: HTTPServer, pause: float = 0.0) -> int:
    time.sleep(pause)
    return len(httpserver.log)


def test_alert_leaves_without_the_journal(tmp_path: Path) -> None:
    """A full disk: the journal cannot be written, own orders are cancelled, and the owner is notified."""
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9), hour=14)

    @contextmanager
    def full(*_: object) -> Iterator[None]:
        raise JournalError("the journal cannot be used (database or disk is full): free some disk space")
        yield

    sim.store.write = full  # type: ignore[assignment, method-assign]
    with pytest.raises(JournalError):
        sim.day(date(2024, 1, 12))
    [(level, _, message)] = [alert for alert in sim.alerts if alert[1] == "journal"]
    assert level == "critical"
    assert "disk is full" in message


@pytest.mark.parametrize(("age", "running"), [(1, True), (10, False), (100, False)])
def test_daemon_whose_process_has_ended_does_not_trade(tmp_path: Path, age: int, running: bool) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    at = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    path = tmp_path / "heartbeat.json"
    for pid, is_running in ((process.pid, running), (os.getpid(), age < STALE_AFTER)):
        path.write_text(json.dumps({"at": at, "pid": pid, "trading": True}))
        beat = read_heartbeat(str(path))
        assert (beat.running, beat.trading) == (is_running, is_running)
