"""Monitoring: masked logs, signed alerts, heartbeat, health and metrics."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import socket
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from finrl_pod.errors import ConfigError, SetupError
from finrl_pod.paper.monitoring import health
from finrl_pod.paper.monitoring.alerts import Alerts
from finrl_pod.paper.monitoring.health import HealthServer, Heartbeat
from finrl_pod.paper.monitoring.logs import open_log

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


def test_stalled_loop_is_reported_as_unhealthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "deep" / "heartbeat.json"
    heart = Heartbeat(file)
    assert not heart.alive
    heart.beat(trading=True)
    assert heart.alive
    assert json.loads(file.read_text())["trading"] is True
    server = HealthServer(0, heart, lambda: {"equity": 123.5})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health") as answer:
            assert json.loads(answer.read()) == {"alive": True, "trading": True}
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            assert "finrl_pod_equity 123.5" in answer.read().decode()
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
        heart.beat(trading=False)
        assert systemd.recv(100) == b"WATCHDOG=1"
        heart.beat(trading=True)
        assert b"READY=1" in systemd.recv(100)
