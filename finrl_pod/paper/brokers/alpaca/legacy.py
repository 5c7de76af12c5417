"""Alpaca's former client library, alpaca-trade-api 3.2.0, which its makers have given up in favour of alpaca-py.

Its pins clash with those of current libraries, so it lives in a virtual environment of its own. Its stream needs an
old websockets; orders and fills are asked for over REST.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from finrl_pod.errors import SetupError
from finrl_pod.paper.brokers.alpaca.account import AlpacaAccount
from finrl_pod.paper.brokers.alpaca.addresses import DATA, PAPER, data_address, trading_address
from finrl_pod.paper.brokers.alpaca.feed import AlpacaFeed, FeedName
from finrl_pod.paper.brokers.alpaca.keys import Keys, keys_from_environment
from finrl_pod.paper.brokers.alpaca.stream import NoStream
from finrl_pod.paper.brokers.alpaca.transport import Line, bounded_session
from finrl_pod.paper.brokers.port import Clock

_PAGE = 10_000
_ACTIONS = 1_000


class TradeApiWire:
    """alpaca-trade-api with its session replaced by one that is bounded and its own retries switched off."""

    name = "alpaca-trade-api"

    def __init__(self, trading_base: str, data_base: str, keys: Keys, line: Line) -> None:
        try:
            from alpaca_trade_api.rest import REST, URL
        except ImportError:
            raise SetupError(
                "alpaca-trade-api is not installed here: its pins need an environment of their own (make test-legacy)"
            ) from None
        self._trading = _client(REST, keys, trading_base)
        self._trading._session = bounded_session(line, trading_base, ("GET", "POST", "PATCH", "DELETE"))
        self._data = _client(REST, keys, data_base)
        self._data._session = bounded_session(line, data_base, ("GET",))
        self._data_base = URL(data_base)

    def trading(self, method: str, path: str, data: Mapping[str, Any] | None = None) -> Any:
        call = getattr(self._trading, method.lower())
        return call(path, None if data is None else dict(data))

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> Mapping[str, Sequence[Any]]:
        query = {"symbols": ",".join(symbols), "start": start.isoformat(), "end": end.isoformat(), "limit": _ACTIONS}
        return self._pages("/corporate-actions", query, "corporate_actions", "v1")

    def bars(
        self, symbols: Sequence[str], start: datetime, end: datetime, adjustment: str, feed: str
    ) -> Mapping[str, Any]:
        query = {
            "symbols": ",".join(symbols),
            "timeframe": "1Day",
            "start": start.isoformat(),
            "end": end.isoformat(),
            "adjustment": adjustment,
            "feed": feed,
            "limit": _PAGE,
        }
        return self._pages("/stocks/bars", query, "bars", "v2")

    def latest_trades(self, symbols: Sequence[str], feed: str) -> Mapping[str, Any]:
        query = {"symbols": ",".join(symbols), "feed": feed}
        found: Mapping[str, Any] = self._ask("/stocks/trades/latest", query, "v2")["trades"]
        return found

    def _pages(self, path: str, query: dict[str, Any], name: str, version: str) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        while True:
            answer = self._ask(path, query, version)
            for group, entries in answer[name].items():
                found.setdefault(group, []).extend(entries)
            if not answer.get("next_page_token"):
                return found
            query["page_token"] = answer["next_page_token"]

    def _ask(self, path: str, query: Mapping[str, Any], version: str) -> Any:
        return self._data._request("GET", path, dict(query), base_url=self._data_base, api_version=version)


def open_trade_api(
    clock: Clock, url: str = "", data_url: str = "", *, feed: FeedName = "iex"
) -> tuple[AlpacaAccount, AlpacaFeed]:
    """The same as `open_alpaca`, with the former library and without a stream."""
    trading_base = trading_address(url or PAPER)
    data_base = data_address(data_url or (DATA if trading_base == PAPER else url))
    keys, line = keys_from_environment(), Line(clock)
    wire = TradeApiWire(trading_base, data_base, keys, line)
    account = AlpacaAccount(wire, line, keys, NoStream())
    return account, AlpacaFeed(account, wire, clock, feed)


def _client(rest: Any, keys: Keys, base: str) -> Any:
    client = rest(keys.key, keys.secret, base, api_version="v2", raw_data=True)
    # The environment could ask it to repeat requests: a POST is never repeated.
    client._retry = 0
    return client
