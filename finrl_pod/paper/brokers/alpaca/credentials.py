"""API keys, and the allow-lists of addresses that they may be sent to.

An address is parsed once and compared as a whole: scheme, host and port. Look-alikes of an allowed host
(`paper-api.alpaca.markets@example.com`, `paper-api.alpaca.markets.example.com`, another port, a path) are refused
before any key is read or sent.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from finrl_pod.errors import AddressNotAllowed
from finrl_pod.masking import SecretMask, read_secrets

PAPER_URL = "https://paper-api.alpaca.markets"
DATA_URL = "https://data.alpaca.markets"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
KEY_VARIABLE = "APCA_API_KEY_ID"
SECRET_VARIABLE = "APCA_API_SECRET_KEY"
OWNER = "the API keys of your Alpaca paper account"

_HTTP_PORT = 80
_HTTPS_PORT = 443


@dataclass(frozen=True)
class Keys:
    """API keys of an account. They are hidden in repr; `mask` removes them from any text."""

    key: str = field(repr=False)
    secret: str = field(repr=False)

    def mask(self, text: str) -> str:
        """The text with both keys replaced by ***, in whatever form they are in it."""
        return self._mask.text(text)

    @functools.cached_property
    def _mask(self) -> SecretMask:
        return SecretMask((self.key, self.secret))


def keys_from_environment() -> Keys:
    """Keys from APCA_API_KEY_ID and APCA_API_SECRET_KEY. Raises SetupError as `read_secrets`."""
    return Keys(*read_secrets(KEY_VARIABLE, SECRET_VARIABLE, owner=OWNER))


def trading_address(url: str) -> str:
    """Base URL for orders: Alpaca paper trading or this machine. Raises AddressNotAllowed for any other."""
    return _checked_base(url, PAPER_URL, "trading address")


def data_address(url: str) -> str:
    """Base URL for prices: Alpaca data host or this machine. Raises AddressNotAllowed for any other."""
    return _checked_base(url, DATA_URL, "data address")


def default_data_url(url: str) -> str:
    """Data URL that belongs to a trading URL: Alpaca data host for Alpaca, else the same server."""
    return DATA_URL if not url or trading_address(url) == PAPER_URL else url


def stream_address(base: str) -> str:
    """URL of the trade-updates stream that belongs to a trading address."""
    return trading_address(base).replace("http", "ws", 1) + "/stream"


def is_loopback(base: str) -> bool:
    """Whether an address is on this machine."""
    return urlsplit(base).hostname in LOOPBACK_HOSTS


def within(url: str, base: str) -> bool:
    """Whether a URL lies under a checked base: same scheme, host and port, an absolute path, no user name."""
    url_parts = _parse(url)
    base_parts = _parse(base)
    if url_parts is None or base_parts is None:
        return False
    return _origin(url_parts) == _origin(base_parts) and url_parts.path.startswith("/")


def _checked_base(url: str, official: str, purpose: str) -> str:
    parts = _parse(url)
    if parts is not None and parts.path in ("", "/") and not parts.query and not parts.fragment:
        origin = _origin(parts)
        official_parts = _parse(official)
        assert official_parts is not None
        if origin == _origin(official_parts):
            return official
        scheme, host, port = origin
        if scheme in ("http", "https") and host in LOOPBACK_HOSTS:
            shown_host = f"[{host}]" if ":" in host else host
            return f"{scheme}://{shown_host}:{port}"
    raise AddressNotAllowed(
        f"{purpose} {_without_user(url)} is not allowed; use {official} or a server on this machine (http://127.0.0.1)"
    )


def _parse(url: str) -> SplitResult | None:
    """Parts of a plain URL; None for one with a user name, with control characters, or that cannot be parsed."""
    if not url.isascii() or not url.isprintable() or any(c in url for c in " \\"):
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return None if "@" in parts.netloc or not parts.hostname else parts


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    default = _HTTPS_PORT if parts.scheme in ("https", "wss") else _HTTP_PORT
    return parts.scheme.lower(), parts.hostname or "", default if parts.port is None else parts.port


def _without_user(url: str) -> str:
    """The URL for messages, without a user name and password before the host."""
    return repr(url.rsplit("@", 1)[-1]) + (" (user name removed)" if "@" in url else "")
