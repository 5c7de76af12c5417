"""Delivery of alerts: a signed webhook, and e-mail, Telegram and others through apprise; never blocks the daemon."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from finrl_pod.errors import ConfigError
from finrl_pod.files import replace_file
from finrl_pod.paper.monitoring.logs import masked, secrets

SECRET, URLS, PING = "FINRL_POD_WEBHOOK_SECRET", "FINRL_POD_ALERT_URLS", "FINRL_POD_PING_URL"
TIMEOUT = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 300.0  # seconds between two attempts at one alert
MAX_WAITING = 1000  # alerts; further ones are dropped, all of them are in the journal
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
LEVELS = ("info", "warning", "critical")


@dataclass
class _Delivery:
    """An alert and the receivers that have not accepted it yet. due: monotonic time of the next attempt."""

    values: dict[str, str]
    receivers: set[str]
    due: float = 0.0
    pause: float = FIRST_PAUSE


class Alerts:
    """Delivers alerts from a background thread, again with growing pauses until every receiver has accepted them.

    Undelivered alerts are kept in the file `spool`, from which the next process takes them. Failures are logged.
    """

    def __init__(
        self, webhook: str, log: Any, environment: Mapping[str, str] = os.environ, spool: Path | None = None,
        first_pause: float = FIRST_PAUSE,
    ) -> None:  # fmt: skip
        """first_pause: seconds until the second attempt; later ones wait twice as long each, at most LONGEST_PAUSE.

        Raises ConfigError for a webhook without a secret, or that is neither https nor on this machine.
        """
        self._webhook = webhook
        self._log = log
        self._secret = environment.get(SECRET, "")
        self._urls = environment.get(URLS, "").split()
        self._hidden = secrets(environment)
        self._spool = spool
        self._first_pause = first_pause
        if webhook:
            check_address(webhook, "monitoring.webhook")
            if not self._secret:
                raise ConfigError(f"monitoring.webhook needs a secret for its signature: set {SECRET}")
        self._deliver_to: dict[str, Callable[[Mapping[str, str]], None]] = {}
        if webhook:
            self._deliver_to["webhook"] = self._post
        if self._urls:
            self._deliver_to["apprise"] = self._notify
        self._changed = threading.Condition()
        self._waiting = self._read_spool()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)
        self._thread.start()

    def send(self, level: str, kind: str, message: str) -> None:
        """Log an alert and queue it for delivery. Raises ValueError for an unknown level."""
        if level not in LEVELS:
            raise ValueError(f"level must be one of {LEVELS}, got {level!r}")
        write = {"info": self._log.info, "warning": self._log.warning, "critical": self._log.critical}[level]
        write("alert", kind=kind, message=message)
        values = {"at": datetime.now(UTC).isoformat(), "level": level, "kind": kind}
        values["message"] = masked(message, self._hidden)
        if not self._deliver_to:
            return
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self._log.warning("alert not delivered", reason="too many are waiting", kind=kind)
                return
            self._waiting.append(_Delivery(values, set(self._deliver_to), pause=self._first_pause))
            self._changed.notify_all()

    def close(self, seconds: float = TIMEOUT) -> bool:
        """Deliver what is queued for at most `seconds`, then stop. Returns True if every receiver has accepted all."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        with self._changed:
            self._write_spool()
            return not self._waiting

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                ready = [d for d in self._waiting if d.due <= time.monotonic()]
                if not ready:
                    if self._closing:
                        return
                    pauses = [d.due - time.monotonic() for d in self._waiting]
                    self._changed.wait(max(min(pauses), 0.0) if pauses else None)
                    continue
            for delivery in ready:
                self._attempt(delivery)
            with self._changed:
                self._waiting = [d for d in self._waiting if d.receivers]
                self._write_spool()

    def _attempt(self, delivery: _Delivery) -> None:
        for name in sorted(delivery.receivers):
            try:
                if name in self._deliver_to:
                    self._deliver_to[name](delivery.values)
                delivery.receivers.discard(name)
            except Exception as error:  # noqa: BLE001 - a receiver may fail in any way, and must not end the thread
                reason = masked(f"{type(error).__name__}: {error}", self._hidden)
                self._log.warning("alert not delivered", reason=reason, kind=delivery.values["kind"], receiver=name)
        delivery.due = time.monotonic() + delivery.pause
        delivery.pause = min(2 * delivery.pause, LONGEST_PAUSE)

    # ------------------------------------------------------------------ the spool

    def _read_spool(self) -> list[_Delivery]:
        """Deliveries that an earlier process left; a file that cannot be read counts as empty."""
        if self._spool is None:
            return []
        try:
            rows = json.loads(self._spool.read_text())
            return [
                _Delivery({k: str(v) for k, v in row["values"].items()}, set(row["receivers"]), pause=self._first_pause)
                for row in rows
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []

    def _write_spool(self) -> None:
        if self._spool is None:
            return
        with contextlib.suppress(OSError):  # the disk may be full, which is what an alert may be about
            if self._waiting:
                rows = [{"values": d.values, "receivers": sorted(d.receivers)} for d in self._waiting]
                replace_file(self._spool, json.dumps(rows).encode())
            else:
                self._spool.unlink(missing_ok=True)

    # ------------------------------------------------------------------ receivers

    def _post(self, values: Mapping[str, str]) -> None:
        body = json.dumps(values, sort_keys=True).encode()
        headers = {"Content-Type": "application/json", **signature(body, self._secret, values["at"])}
        request = urllib.request.Request(self._webhook, data=body, headers=headers, method="POST")
        with _opener().open(request, timeout=TIMEOUT):
            pass

    def _notify(self, values: Mapping[str, str]) -> None:
        import apprise

        notifier = apprise.Apprise()
        for url in self._urls:
            notifier.add(url)
        kinds = {"info": "info", "warning": "warning", "critical": "failure"}
        title = f"finrl_pod paper: {values['kind']}"
        if not notifier.notify(body=values["message"], title=title, notify_type=kinds[values["level"]]):
            raise OSError("a notification service did not accept the message")


class DeadManPing:
    """Requests a URL at intervals while all is well, so that a service at the other end notices when it stops.

    is_well: called before each request, from a background thread.
    """

    def __init__(self, url: str, seconds: float, is_well: Callable[[], bool], log: Any) -> None:
        """Raises ConfigError for an address that is neither https nor on this machine."""
        check_address(url, PING)
        self._url, self._seconds, self._is_well, self._log = url, seconds, is_well, log
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ping", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. The service at the other end then raises the alarm."""
        self._stopped.set()
        self._thread.join(TIMEOUT)

    def _run(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            pause = min(self._seconds, 1.0)
            if self._is_well():
                pause = self._seconds
                try:
                    with _opener().open(self._url, timeout=TIMEOUT):
                        pass
                except Exception as error:  # noqa: BLE001 - the service may fail in any way; its address is secret
                    self._log.warning("ping failed", reason=type(error).__name__)


def check_address(url: str, name: str) -> None:
    """Raises ConfigError for an address that is neither https nor on this machine. name: of its setting."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ConfigError(
            f"{name} must be an https URL (http on this machine only), got a {parts.scheme or 'bare'} address"
        )


def _opener() -> urllib.request.OpenerDirector:
    """No redirects and no proxies of the environment: the URL is the configured one."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


def signature(body: bytes, secret: str, at: str) -> dict[str, str]:
    """Return the signature headers of a webhook: HMAC-SHA256 over "AT.BODY", in hexadecimal."""
    digest = hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Finrl-Pod-Time": at, "X-Finrl-Pod-Signature": f"sha256={digest}"}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
