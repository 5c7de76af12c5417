"""The two allow-lists: where orders may go, and where prices may be read. Checked before any key is sent.

An address is taken apart once and compared whole: scheme, host, port. What looks like an allowed host but is not
(`paper-api.alpaca.markets@example.com`, `paper-api.alpaca.markets.example.com`, another port, a path) is refused.
"""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from finrl_pod.errors import AddressNotAllowed

PAPER = "https://paper-api.alpaca.markets"
DATA = "https://data.alpaca.markets"
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_HTTPS = 443


def trading_address(url: str) -> str:
    """The base for orders: Alpaca's paper trading, or this machine. Raises AddressNotAllowed for any other."""
    return _base(url, PAPER, "orders go to Alpaca's paper trading")


def data_address(url: str) -> str:
    """The base for prices: Alpaca's data host, or this machine. Raises AddressNotAllowed for any other."""
    return _base(url, DATA, "prices come from Alpaca's data host")


def stream_address(base: str) -> str:
    """The trade-updates stream beside a trading address."""
    return trading_address(base).replace("http", "ws", 1) + "/stream"


def is_loopback(base: str) -> bool:
    """Whether an address is on this machine."""
    return urlsplit(base).hostname in LOOPBACK


def within(url: str, base: str) -> bool:
    """Whether a request's whole address is under a checked base: the same scheme, host and port, and no user in it."""
    asked, allowed = _parts(url), _parts(base)
    if asked is None or allowed is None:
        return False
    return _place(asked) == _place(allowed) and asked.path.startswith("/")


def _base(url: str, official: str, rule: str) -> str:
    parts = _parts(url)
    if parts is not None and parts.path in ("", "/") and not parts.query and not parts.fragment:
        place = _place(parts)
        known = _parts(official)
        assert known is not None
        if place == _place(known):
            return official
        scheme, host, port = place
        if scheme in ("http", "https") and host in LOOPBACK:
            shown = f"[{host}]" if ":" in host else host
            return f"{scheme}://{shown}:{port}"
    raise AddressNotAllowed(
        f"{rule} ({official}) or to this machine alone, {_shown(url)} is neither: correct the address"
    )


def _parts(url: str) -> SplitResult | None:
    """The parts of a plain address, None for one with a user, control characters, or anything that cannot be read."""
    if not url.isascii() or not url.isprintable() or any(c in url for c in " \\"):
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return None if "@" in parts.netloc or not parts.hostname else parts


def _place(parts: SplitResult) -> tuple[str, str, int]:
    default = _HTTPS if parts.scheme in ("https", "wss") else 80
    return parts.scheme.lower(), parts.hostname or "", default if parts.port is None else parts.port


def _shown(url: str) -> str:
    """For messages: an address may hold a password before its host."""
    return repr(url.rsplit("@", 1)[-1]) + (" (with a user before it)" if "@" in url else "")
