"""Health and metrics over HTTP, on loopback alone: /health for a container's probe, /metrics for Prometheus."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from finrl_pod.errors import SetupError
from finrl_pod.paper.monitoring.heartbeat import Heartbeat

ADDRESS = "127.0.0.1"
Facts = Callable[[], Mapping[str, float]]


class HealthServer:
    """Serves from threads of its own. facts: what /metrics shows, by name, read at each question."""

    def __init__(self, port: int, heartbeat: Heartbeat, facts: Facts) -> None:
        """Raises SetupError when the port is taken. Port 0 takes any free one, see `port`."""
        try:
            self._server = ThreadingHTTPServer((ADDRESS, port), _handler(heartbeat, facts))
        except OSError as error:
            raise SetupError(f"port {port} on {ADDRESS} cannot be used: {error.strerror}; name another") from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(heartbeat: Heartbeat, facts: Facts) -> type[BaseHTTPRequestHandler]:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import GaugeMetricFamily

    class Collector:
        def collect(self) -> Any:
            values = {"heartbeat_age_seconds": heartbeat.age, "trading": float(heartbeat.trading), **facts()}
            for name, value in values.items():
                yield GaugeMetricFamily(f"finrl_pod_{name}", name.replace("_", " "), value=value)

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
                self._answer(404, "text/plain", b"there is /health and /metrics\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass  # a probe every few seconds is no news

    return Handler
