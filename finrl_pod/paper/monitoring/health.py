"""Liveness of the daemon: heartbeat file, systemd watchdog, and /health and /metrics over HTTP on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from finrl_pod.errors import SetupError
from finrl_pod.files import replace_file

ADDRESS = "127.0.0.1"
HEARTBEAT_INTERVAL = 1.0  # real seconds between two writes
PROCESS_CHECK_AFTER = 3.0  # real seconds without a heartbeat; then the process of the daemon is checked
STALE_AFTER = 60.0  # real seconds; every call to a broker ends sooner, so an older heartbeat means a hanging loop
Metrics = Callable[[], Mapping[str, float]]
MEANINGS = {
    "state": "0 active, 1 reducing (only orders that reduce a position), 2 halted (no orders)",
    "trading": "1 if orders may be sent, 0 before recovery, in a halt, an outage, a block or a mismatch",
    "distance_to_target": "distance of the holdings to their target, as a part of equity",
}  # of gauges whose names do not say it


class Heartbeat:
    """Written by the main loop of the daemon only: if the loop hangs, heartbeat file and watchdog go stale."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._last = float("-inf")
        self.recovered = False
        self.trading = False
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def beat(self, *, recovered: bool, trading: bool) -> None:
        """Record a sign of life. Cheap to call often. recovered: recovery is complete. trading: orders may be sent."""
        now = time.monotonic()
        if now - self._last < HEARTBEAT_INTERVAL and (recovered, trading) == (self.recovered, self.trading):
            return
        self._last = now
        self.recovered = recovered
        self.trading = trading
        _notify_systemd("WATCHDOG=1\nREADY=1" if recovered else "WATCHDOG=1")
        if self._path is not None:
            beat = {"at": datetime.now(UTC).isoformat(), "pid": os.getpid(), "trading": trading}
            with contextlib.suppress(OSError):  # on a full disk, the file goes stale and monitoring reports it
                replace_file(self._path, json.dumps(beat).encode(), durable=False)  # once a second

    @property
    def age(self) -> float:
        """Real seconds since the last beat; infinite before the first."""
        return time.monotonic() - self._last

    @property
    def alive(self) -> bool:
        """True if the last beat is less than STALE_AFTER seconds old."""
        return self.age < STALE_AFTER


class HealthServer:
    """Serves /health for container probes and /metrics for Prometheus, from background threads.

    metrics: called at each request, returns the gauges of /metrics by name.
    """

    def __init__(self, port: int, heartbeat: Heartbeat, metrics: Metrics) -> None:
        """Raises SetupError if the port is in use. Port 0 selects a free one, see `port`."""
        self._server = _open_server(port, _handler(heartbeat, metrics))
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def check_port(port: int) -> None:
    """Raises SetupError if a `HealthServer` could not use the port."""
    _open_server(port, BaseHTTPRequestHandler).server_close()


def _open_server(port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    try:
        return ThreadingHTTPServer((ADDRESS, port), handler)
    except OSError as error:
        raise SetupError(
            f"port {port} on {ADDRESS} cannot be used ({error.strerror}). Set another monitoring.port."
        ) from None


def _handler(heartbeat: Heartbeat, metrics: Metrics) -> type[BaseHTTPRequestHandler]:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import GaugeMetricFamily

    class Collector:
        def collect(self) -> Any:
            values = {"heartbeat_age_seconds": heartbeat.age, "trading": float(heartbeat.trading), **metrics()}
            for name, value in values.items():
                yield GaugeMetricFamily(f"finrl_pod_{name}", MEANINGS.get(name, name.replace("_", " ")), value=value)

    registry = CollectorRegistry()
    registry.register(Collector())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                state = {"alive": heartbeat.alive, "trading": heartbeat.trading}
                self._answer(200 if heartbeat.alive else 503, "application/json", json.dumps(state).encode())
            elif self.path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
            else:
                self._answer(404, "text/plain", b"not found: use /health or /metrics\n")

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass  # probes every few seconds are not worth logging

    return Handler


def _notify_systemd(state: str) -> None:
    """Send a state to systemd, if it started this process (sd_notify: one datagram to NOTIFY_SOCKET)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    address = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError:
            return  # no listener: the watchdog will time out


def has_ended(pid: int) -> bool:
    """Whether no such process runs on this machine; zombies count as ended."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
