"""Adapter to alpaca-trade-api 3.2.0, the deprecated client library of Alpaca.

Its version pins conflict with current libraries, so it needs a separate virtual environment. Its stream needs an old
version of websockets and is not used; orders and fills are polled over REST.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from finrl_pod.errors import SetupError
from finrl_pod.paper.brokers.alpaca.account import Timeframe
from finrl_pod.paper.brokers.alpaca.credentials import Keys
from finrl_pod.paper.brokers.alpaca.transport import DATA_METHODS, TRADING_METHODS, RequestContext, bounded_session

_BARS_PER_PAGE = 10_000
_ACTIONS_PER_PAGE = 1_000


class TradeApiLibrary:
    """alpaca-trade-api with a bounded session and without retries. Satisfies `ClientLibrary`."""

    name = "alpaca-trade-api"
    has_stream = False

    def __init__(self, trading_base: str, data_base: str, keys: Keys, context: RequestContext) -> None:
        try:
            from alpaca_trade_api.rest import REST, URL
        except ImportError:
            raise SetupError(
                "alpaca-trade-api is not installed; it needs a separate virtual environment (see `make test-legacy`)"
            ) from None
        self.trading = _client(REST, keys, trading_base)
        self.trading._session = bounded_session(context, trading_base, TRADING_METHODS)
        self._data = _client(REST, keys, data_base)
        self._data._session = bounded_session(context, data_base, DATA_METHODS)
        self._data_base = URL(data_base)

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> Mapping[str, Sequence[Any]]:
        query: dict[str, Any] = {
            "symbols": ",".join(symbols),
            "start": start.isoformat(),
            "end": end.isoformat(),
            "limit": _ACTIONS_PER_PAGE,
        }
        return self._get_pages("/corporate-actions", query, "corporate_actions", "v1")

    def bars(
        self, timeframe: Timeframe, symbols: Sequence[str], start: datetime, end: datetime, adjustment: str, feed: str
    ) -> Mapping[str, Any]:
        query = {
            "symbols": ",".join(symbols),
            "timeframe": timeframe,
            "start": start.isoformat(),
            "end": end.isoformat(),
            "adjustment": adjustment,
            "feed": feed,
            "limit": _BARS_PER_PAGE,
        }
        return self._get_pages("/stocks/bars", query, "bars", "v2")

    def latest_trades(self, symbols: Sequence[str], feed: str) -> Mapping[str, Any]:
        query = {"symbols": ",".join(symbols), "feed": feed}
        response: Mapping[str, Any] = self._get("/stocks/trades/latest", query, "v2")["trades"]
        return response

    def _get_pages(self, path: str, query: dict[str, Any], name: str, version: str) -> dict[str, list[Any]]:
        response: dict[str, list[Any]] = {}
        while True:
            answer = self._get(path, query, version)
            for group, entries in answer[name].items():
                response.setdefault(group, []).extend(entries)
            if not answer.get("next_page_token"):
                return response
            query["page_token"] = answer["next_page_token"]

    def _get(self, path: str, query: Mapping[str, Any], version: str) -> Any:
        return self._data._request("GET", path, dict(query), base_url=self._data_base, api_version=version)


def _client(rest: Any, keys: Keys, base: str) -> Any:
    client = rest(keys.key, keys.secret, base, api_version="v2", raw_data=True)
    # Retries can be configured through the environment; a POST must never be repeated.
    client._retry = 0
    return client
