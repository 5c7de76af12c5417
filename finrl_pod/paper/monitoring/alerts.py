"""Delivery of alerts: a signed webhook, and e-mail, Telegram and others through apprise; never blocks the daemon."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import queue
import threading
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from finrl_pod.errors import ConfigError
from finrl_pod.paper.monitoring.logs import masked, secrets

SECRET, URLS = "FINRL_POD_WEBHOOK_SECRET", "FINRL_POD_ALERT_URLS"
TIMEOUT = 5.0
MAX_QUEUED = 1000  # alerts; further ones are dropped, all of them are in the journal
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LEVELS = ("info", "warning", "critical")


class Alerts:
    """Delivers alerts from a background thread, once each; failures are logged, not raised.

    Every alert is in the journal before it is delivered.
    """

    def __init__(self, webhook: str, log: Any, environment: Mapping[str, str] = os.environ) -> None:
        """Raises ConfigError for a webhook without a secret, or that is neither https nor on this machine."""
        self._webhook = webhook
        self._log = log
        self._secret = environment.get(SECRET, "")
        self._urls = environment.get(URLS, "").split()
        self._hidden = secrets(environment)
        if webhook:
            parts = urlsplit(webhook)
            if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
                raise ConfigError(f"monitoring.webhook must be an https URL (http on this machine only), got {webhook}")
            if not self._secret:
                raise ConfigError(f"monitoring.webhook needs a secret for its signature: set {SECRET}")
        self._queue: queue.Queue[dict[str, str] | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._deliver, name="alerts", daemon=True)
        self._thread.start()

    def send(self, level: str, kind: str, message: str) -> None:
        """Log an alert and queue it for delivery. Raises ValueError for an unknown level."""
        if level not in _LEVELS:
            raise ValueError(f"level must be one of {_LEVELS}, got {level!r}")
        write = {"info": self._log.info, "warning": self._log.warning, "critical": self._log.critical}[level]
        write("alert", kind=kind, message=message)
        values = {"at": datetime.now(UTC).isoformat(), "level": level, "kind": kind}
        values["message"] = masked(message, self._hidden)
        try:
            self._queue.put_nowait(values)
        except queue.Full:
            self._log.warning("alert not delivered", reason="queue full", kind=kind)

    def close(self, seconds: float = TIMEOUT) -> None:
        """Deliver queued alerts for at most `seconds`, then stop."""
        self._queue.put(None)
        self._thread.join(seconds)

    def _deliver(self) -> None:
        while (values := self._queue.get()) is not None:
            for deliver in (self._post, self._notify):
                try:
                    deliver(values)
                except Exception as error:  # noqa: BLE001 - a receiver may fail in any way, and must not end the thread
                    reason = masked(f"{type(error).__name__}: {error}", self._hidden)
                    self._log.warning("alert not delivered", reason=reason, kind=values["kind"])

    def _post(self, values: Mapping[str, str]) -> None:
        if not self._webhook:
            return
        body = json.dumps(values, sort_keys=True).encode()
        headers = {"Content-Type": "application/json", **signature(body, self._secret, values["at"])}
        request = urllib.request.Request(self._webhook, data=body, headers=headers, method="POST")
        # No redirects and no proxies of the environment: the URL is the configured one.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
        with opener.open(request, timeout=TIMEOUT):
            pass

    def _notify(self, values: Mapping[str, str]) -> None:
        if not self._urls:
            return
        import apprise

        notifier = apprise.Apprise()
        for url in self._urls:
            notifier.add(url)
        kinds = {"info": "info", "warning": "warning", "critical": "failure"}
        title = f"finrl_pod paper: {values['kind']}"
        if not notifier.notify(body=values["message"], title=title, notify_type=kinds[values["level"]]):
            raise OSError("a notification service did not accept the message")


def signature(body: bytes, secret: str, at: str) -> dict[str, str]:
    """Return the signature headers of a webhook: HMAC-SHA256 over "AT.BODY", in hexadecimal."""
    digest = hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Finrl-Pod-Time": at, "X-Finrl-Pod-Signature": f"sha256={digest}"}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
