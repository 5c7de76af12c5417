"""Delivery of alerts: a signed webhook, and e-mail, Telegram and others through apprise; never blocks the daemon."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from finrl_pod.errors import ConfigError
from finrl_pod.files import replace_file
from finrl_pod.masking import environment_mask
from finrl_pod.paper.deadline import RequestDeadline, watch_all_connections, watch_connections

Deliver = Callable[[Mapping[str, str]], None]  # sends an alert, raises any error if it was not accepted
WEBHOOK = "webhook"
MAX_ANSWER = 1_000_000  # bytes
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_APPRISE_KINDS = {"info": "info", "warning": "warning", "critical": "failure"}
SECRET = "FINRL_POD_WEBHOOK_SECRET"
URLS = "FINRL_POD_ALERT_URLS"
PING = "FINRL_POD_PING_URL"
PING_SECONDS = 60.0  # between two requests to the address of PING while all is well
TIMEOUT = 10.0  # seconds of one attempt, whatever a receiver sends
CLOSE_SECONDS = 5.0
FIRST_PAUSE = 2.0  # seconds between two attempts at one alert
LONGEST_PAUSE = 300.0
MAX_WAITING = 1000  # alerts of one receiver; further ones are dropped, all of them are in the journal
MAX_LATE = 4  # attempts of one receiver that did not end in time and still run
LEVELS = ("info", "warning", "critical")


@dataclass
class _Schedule:
    """When a receiver is tried again. due: monotonic time. pause: seconds after the next failure."""

    due: float
    pause: float


@dataclass(eq=False)
class _Delivery:
    """An alert and the receivers that have not accepted it yet."""

    values: dict[str, str]
    receivers: dict[str, _Schedule]

    @property
    def urgency(self) -> int:
        return LEVELS.index(self.values["level"]) if self.values.get("level") in LEVELS else 0


class _Attempt:
    """One delivery in a thread of its own: an apprise service without HTTP has no limit on the time of its answer."""

    def __init__(self, name: str, deliver: Deliver, values: Mapping[str, str]) -> None:
        self._deliver = deliver
        self._values = values
        self._failure: str | None = None
        self.thread = threading.Thread(target=self._run, name=f"alert to {name}", daemon=True)
        self.thread.start()

    def wait(self, seconds: float) -> str:
        """Return why it was not accepted within that time, or an empty text."""
        self.thread.join(seconds + 1.0)  # an HTTP request ends by itself
        return f"no answer within {seconds:g} s" if self._failure is None else self._failure

    def _run(self) -> None:
        try:
            self._deliver(self._values)
            self._failure = ""
        except Exception as error:  # noqa: BLE001 - a receiver may fail in any way, and must not end the thread
            self._failure = f"{type(error).__name__}: {error}"


class Alerts:
    """Delivers alerts from one background thread for each receiver, so that none waits for another.

    Each receiver gets critical alerts first, and each alert again with growing pauses until it has accepted it.
    Undelivered alerts are kept in the file `spool`, from which the next process takes them. Failures are logged.
    """

    def __init__(
        self, webhook: str, log: Any, environment: Mapping[str, str] = os.environ, spool: Path | None = None,
        first_pause: float = FIRST_PAUSE, timeout: float = TIMEOUT,
    ) -> None:  # fmt: skip
        """first_pause: seconds until the second attempt; later ones wait twice as long each, at most LONGEST_PAUSE.

        timeout: seconds of one attempt. Raises ConfigError for a webhook without a secret, or that is neither https
        nor on this machine.
        """
        self._log = log
        self._spool = spool
        self._first_pause = first_pause
        self._timeout = timeout
        self._mask = environment_mask(environment)
        self._receivers = open_receivers(webhook, environment, timeout)
        self._late: dict[str, list[_Attempt]] = {name: [] for name in self._receivers}
        self._condition = threading.Condition()
        self._waiting = self._read_spool()
        self._is_closing = self._is_closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(name,), name=f"alerts {name}", daemon=True)
            for name in self._receivers
        ]
        for thread in self._threads:
            thread.start()

    def send(self, level: str, kind: str, message: str) -> None:
        """Log an alert, write it to the spool and queue it for delivery. Raises ValueError for an unknown level."""
        if level not in LEVELS:
            raise ValueError(f"level must be one of {LEVELS}, got {level!r}")
        getattr(self._log, level)("alert", kind=kind, message=message)
        if not self._receivers:
            return
        now = datetime.now(UTC).isoformat()
        values = {"at": now, "level": level, "kind": kind, "message": self._mask.text(message)}
        with self._condition:
            self._waiting.append(_Delivery(values, self._schedules(self._receivers)))
            for name in self._receivers:
                self._drop_excess(name)
            self._write_spool()
            self._condition.notify_all()

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Deliver what is queued for at most `seconds`, then stop. Returns True if every receiver has accepted all."""
        end = time.monotonic() + seconds
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        with self._condition:
            self._is_closed = True
            self._write_spool()
            return not self._waiting

    def _run(self, name: str) -> None:
        while True:
            with self._condition:
                if self._is_closed:
                    return
                waiting = [delivery for delivery in self._waiting if name in delivery.receivers]
                ready = [delivery for delivery in waiting if delivery.receivers[name].due <= time.monotonic()]
                if not ready:
                    if self._is_closing:
                        return
                    pauses = [delivery.receivers[name].due - time.monotonic() for delivery in waiting]
                    self._condition.wait(max(min(pauses), 0.0) if pauses else None)
                    continue
            delivery = max(ready, key=lambda candidate: candidate.urgency)  # the oldest one of the most urgent
            failure = self._attempt(name, delivery.values)
            with self._condition:
                self._record(name, delivery, failure)

    def _attempt(self, name: str, values: Mapping[str, str]) -> str:
        """Send an alert to a receiver. Returns why it was not accepted, or an empty text."""
        late_attempts = self._late[name] = [attempt for attempt in self._late[name] if attempt.thread.is_alive()]
        if len(late_attempts) >= MAX_LATE:
            return f"{MAX_LATE} attempts before it have not ended"
        attempt = _Attempt(name, self._receivers[name], values)
        failure = attempt.wait(self._timeout)
        if attempt.thread.is_alive():
            late_attempts.append(attempt)
        return failure

    def _record(self, name: str, delivery: _Delivery, failure: str) -> None:
        schedule = delivery.receivers.get(name)
        if schedule is None:  # dropped meanwhile
            return
        if failure:
            self._log.warning("alert not delivered", reason=failure, kind=delivery.values["kind"], receiver=name)
            schedule.due = time.monotonic() + schedule.pause
            schedule.pause = min(2 * schedule.pause, LONGEST_PAUSE)
            return
        self._remove(name, delivery)
        self._write_spool()

    def _drop_excess(self, name: str) -> None:
        """Drop the oldest of the least urgent alerts that wait for a receiver, if there are too many."""
        waiting = [delivery for delivery in self._waiting if name in delivery.receivers]
        if len(waiting) > MAX_WAITING:
            dropped_delivery = min(waiting, key=lambda delivery: delivery.urgency)
            kind = dropped_delivery.values["kind"]
            self._log.warning("alert not delivered", reason="too many are waiting", kind=kind, receiver=name)
            self._remove(name, dropped_delivery)

    def _remove(self, name: str, delivery: _Delivery) -> None:
        del delivery.receivers[name]
        if not delivery.receivers:
            self._waiting.remove(delivery)

    def _schedules(self, names: Iterable[str]) -> dict[str, _Schedule]:
        return {name: _Schedule(0.0, self._first_pause) for name in names if name in self._receivers}

    def _read_spool(self) -> list[_Delivery]:
        """Deliveries that an earlier process left; a file that cannot be read counts as empty."""
        if self._spool is None or not self._spool.is_file():
            return []
        try:
            rows = json.loads(self._spool.read_text())
            deliveries = [
                _Delivery(
                    {key: str(row["values"][key]) for key in ("at", "level", "kind", "message")},
                    self._schedules(row["receivers"]),
                )
                for row in rows
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return []
        return [delivery for delivery in deliveries if delivery.receivers]

    def _write_spool(self) -> None:
        if self._spool is None:
            return
        with contextlib.suppress(OSError):  # the disk may be full: an alert may be about that
            if self._waiting:
                rows = [{"values": d.values, "receivers": sorted(d.receivers)} for d in self._waiting]
                replace_file(self._spool, json.dumps(rows).encode(), 0o600)
            else:
                self._spool.unlink(missing_ok=True)


class DeadManPing:
    """Requests a URL at intervals while all is well, so that a service at the other end notices when it stops.

    is_well: called before each request, from a background thread.
    """

    def __init__(self, url: str, seconds: float, is_well: Callable[[], bool], log: Any) -> None:
        """Raises ConfigError for an address that is neither https nor on this machine."""
        check_address(url, PING)
        self._url = url
        self._seconds = seconds
        self._is_well = is_well
        self._log = log
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ping", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. The service at the other end then raises the alarm."""
        self._stop_event.set()
        self._thread.join(TIMEOUT)

    def _run(self) -> None:
        pause = 0.0
        while not self._stop_event.wait(pause):
            pause = min(self._seconds, 1.0)
            if self._is_well():
                pause = self._seconds
                try:
                    send_request("GET", self._url, TIMEOUT)
                except Exception as error:  # noqa: BLE001 - the service may fail in any way; its address is secret
                    self._log.warning("ping failed", reason=type(error).__name__)


@dataclass(frozen=True)
class ReceiverTest:
    """Whether a receiver accepted the test alert. detail: why it did not."""

    name: str
    delivered: bool
    detail: str


@dataclass(frozen=True)
class AlertTest:
    """The answers of all receivers to the test alert."""

    receivers: tuple[ReceiverTest, ...]


def send_test_alert(webhook: str, environment: Mapping[str, str] = os.environ, timeout: float = TIMEOUT) -> AlertTest:
    """Send one alert that is marked as a test to every receiver at once. Raises ConfigError like `Alerts`."""
    message = "This is a test alert of paper trading; nothing happened."
    values = {"at": datetime.now(UTC).isoformat(), "level": "info", "kind": "test", "message": message}
    receivers = open_receivers(webhook, environment, timeout)
    attempts = {name: _Attempt(name, deliver, values) for name, deliver in receivers.items()}
    mask = environment_mask(environment)
    failures = {name: mask.text(attempt.wait(timeout)) for name, attempt in attempts.items()}
    return AlertTest(tuple(ReceiverTest(name, not failure, failure) for name, failure in failures.items()))


def open_receivers(
    webhook: str, environment: Mapping[str, str] = os.environ, timeout: float = TIMEOUT
) -> dict[str, Deliver]:
    """Return the function of every receiver by name. Raises ConfigError like `Alerts`."""
    receivers: dict[str, Deliver] = {}
    if webhook:
        check_address(webhook, "monitoring.webhook")
        secret = environment.get(SECRET, "")
        if not secret:
            raise ConfigError(f"monitoring.webhook needs a secret for its signature: set {SECRET}")
        receivers[WEBHOOK] = webhook_receiver(webhook, secret, timeout)
    return receivers | {apprise_name(url): apprise_receiver(url, timeout) for url in environment.get(URLS, "").split()}


def check_receivers(webhook: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the names of the receivers, without sending anything. Raises ConfigError if one cannot work."""
    urls = environment.get(URLS, "").split()
    unusable = [f"{n} ({apprise_name(url)})" for n, url in enumerate(urls, 1) if _apprise_service(url) is None]
    if unusable:
        raise ConfigError(f"apprise cannot use address {', '.join(unusable)} of {URLS}: correct or remove it")
    return tuple(open_receivers(webhook, environment))


def webhook_receiver(url: str, secret: str, seconds: float) -> Deliver:
    """Return the function that posts an alert to a webhook within `seconds`, signed."""

    def post(values: Mapping[str, str]) -> None:
        body = json.dumps(values, sort_keys=True).encode()
        headers = {"Content-Type": "application/json", **signature(body, secret, values["at"])}
        send_request("POST", url, seconds, body=body, headers=headers)

    return post


def apprise_receiver(url: str, seconds: float) -> Deliver:
    """Return the function that sends an alert to the service of an apprise URL within `seconds`."""
    import apprise  # noqa: F401  here, as that takes seconds of the first attempt on a busy machine

    watch_all_connections()

    def notify(values: Mapping[str, str]) -> None:
        service = _apprise_service(url)
        if service is None:
            raise ValueError("apprise cannot use this URL")
        title = f"finrl_pod paper: {values['kind']}"
        kind = _APPRISE_KINDS[values["level"]]
        with RequestDeadline(seconds) as deadline:
            is_accepted = service.notify(body=values["message"], title=title, notify_type=kind)
        if deadline.expired:
            raise TimeoutError(f"no answer within {seconds:g} s")
        if not is_accepted:
            raise OSError("the service did not accept the message")

    return notify


def _apprise_service(url: str) -> Any:
    """Return the service of an apprise URL, or None if there is none or the URL lacks a part that it needs."""
    import apprise

    # Not by an `Apprise`: all of them share a few threads, where one service would wait for another.
    return apprise.Apprise.instantiate(url, asset=apprise.AppriseAsset(http_redirects=False))


def apprise_name(url: str) -> str:
    """Return the name of an apprise URL in logs and in the spool: its scheme and a part of its hash."""
    scheme, separator, _ = url.partition(":")
    return f"{scheme if separator else 'url'}-{hashlib.sha256(url.encode()).hexdigest()[:6]}"


class RefusedRequest(OSError):
    """An answer with a status other than 200 to 299."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the status of the answer is {status}")
        self.status = status


def send_request(
    method: str, url: str, seconds: float, *, body: bytes | None = None, headers: Mapping[str, str] | None = None,
    reads_answer: bool = False,
) -> bytes:  # fmt: skip
    """Send one request that ends within `seconds` in total, without redirects, proxies and retries.

    Returns the body of the answer if `reads_answer`. Raises RefusedRequest for a status outside 200 to 299, and OSError
    without an answer and for one that is too long.
    """
    from requests import RequestException, Session
    from requests.adapters import HTTPAdapter
    from urllib3.exceptions import HTTPError

    content = b""
    with Session() as session, RequestDeadline(seconds) as deadline:
        session.trust_env = False
        for scheme in ("http://", "https://"):
            adapter = HTTPAdapter(max_retries=0)
            watch_connections(adapter.poolmanager)
            session.mount(scheme, adapter)
        options = {"data": body, "headers": headers, "timeout": seconds, "allow_redirects": False, "stream": True}
        try:
            answer = session.request(method, url, **options)  # type: ignore[arg-type]
            if reads_answer:
                content = answer.raw.read(MAX_ANSWER + 1, decode_content=True)
        except (RequestException, HTTPError, OSError) as error:
            if not deadline.expired:
                raise OSError(f"{type(error).__name__}: {error}") from None
    if deadline.expired:
        raise TimeoutError(f"the answer was not complete after {seconds:g} s")
    if not 200 <= answer.status_code < 300:
        raise RefusedRequest(answer.status_code)
    if len(content) > MAX_ANSWER:
        raise OSError(f"the answer is longer than {MAX_ANSWER:,} bytes")
    return content


def check_address(url: str, name: str) -> None:
    """Raises ConfigError for an address that is neither https nor on this machine. name: name of its setting."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ConfigError(
            f"{name} must be an https URL (http on this machine only), got a {parts.scheme or 'bare'} address"
        )


def signature(body: bytes, secret: str, at: str) -> dict[str, str]:
    """Return the signature headers of a webhook: HMAC-SHA256 over "AT.BODY", in hexadecimal."""
    digest = hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Finrl-Pod-Time": at, "X-Finrl-Pod-Signature": f"sha256={digest}"}
