"""Receivers of alerts: a signed webhook, and the services of apprise. Requests have a limit on their total time."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from finrl_pod.errors import ConfigError
from finrl_pod.paper.deadline import RequestDeadline, watch_connections

Deliver = Callable[[Mapping[str, str]], None]  # sends an alert, raises any error if it was not accepted
WEBHOOK = "webhook"
MAX_ANSWER = 1_000_000  # bytes
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_APPRISE_KINDS = {"info": "info", "warning": "warning", "critical": "failure"}


def webhook_receiver(url: str, secret: str, seconds: float) -> Deliver:
    """Return the function that posts an alert to a webhook within `seconds`, signed."""

    def post(values: Mapping[str, str]) -> None:
        body = json.dumps(values, sort_keys=True).encode()
        headers = {"Content-Type": "application/json", **signature(body, secret, values["at"])}
        send_request("POST", url, seconds, body=body, headers=headers)

    return post


def apprise_receiver(url: str) -> Deliver:
    """Return the function that sends an alert to the service of an apprise URL."""

    def notify(values: Mapping[str, str]) -> None:
        import apprise

        notifier = apprise.Apprise()
        if not notifier.add(url):
            raise ValueError("apprise does not know this kind of URL")
        title = f"finrl_pod paper: {values['kind']}"
        kind = _APPRISE_KINDS[values["level"]]
        if not notifier.notify(body=values["message"], title=title, notify_type=kind):
            raise OSError("the service did not accept the message")

    return notify


def apprise_name(url: str) -> str:
    """Return the name of an apprise URL in logs and in the spool: its scheme and a part of its hash."""
    return f"{url.partition(':')[0]}-{hashlib.sha256(url.encode()).hexdigest()[:6]}"


def send_request(
    method: str, url: str, seconds: float, *, body: bytes | None = None, headers: Mapping[str, str] | None = None,
    reads_answer: bool = False,
) -> bytes:  # fmt: skip
    """Send one request that ends within `seconds` in total, without redirects, proxies and retries.

    Returns the body of the answer if `reads_answer`. Raises OSError for a status of 300 and more, without an answer,
    and for one that is too long.
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
    if answer.status_code >= 300:
        raise OSError(f"the status of the answer is {answer.status_code}")
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
