"""Alpaca's present client library, alpaca-py: the adapter that paper trading uses unless told otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from finrl_pod.errors import SetupError
from finrl_pod.paper.brokers.alpaca.account import AlpacaAccount
from finrl_pod.paper.brokers.alpaca.addresses import DATA, PAPER, data_address, trading_address
from finrl_pod.paper.brokers.alpaca.feed import AlpacaFeed, FeedName
from finrl_pod.paper.brokers.alpaca.keys import Keys, keys_from_environment
from finrl_pod.paper.brokers.alpaca.stream import NoStream, UpdateStream
from finrl_pod.paper.brokers.alpaca.transport import Line, bounded_session
from finrl_pod.paper.brokers.port import Clock

TRADING_METHODS = ("GET", "POST", "PATCH", "DELETE")
DATA_METHODS = ("GET",)


class AlpacaPyWire:
    """alpaca-py with its session replaced by one that is bounded and its own retries switched off."""

    name = "alpaca"

    def __init__(self, trading_base: str, data_base: str, keys: Keys, line: Line) -> None:
        with warnings.catch_warnings():
            # alpaca-py imports a part of websockets that is marked as old, and that we do not use.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                from alpaca.data.historical import StockHistoricalDataClient
                from alpaca.data.historical.corporate_actions import CorporateActionsClient
                from alpaca.trading.client import TradingClient
            except ImportError:
                raise SetupError("alpaca-py is not installed: pip install 'finrl-pod[paper]'") from None
        trading: Any = TradingClient(keys.key, keys.secret, paper=True, raw_data=True, url_override=trading_base)
        self._trading = _bounded(trading, line, trading_base, TRADING_METHODS)
        actions: Any = CorporateActionsClient(keys.key, keys.secret, raw_data=True, url_override=data_base)
        self._actions = _bounded(actions, line, data_base, DATA_METHODS)
        stocks: Any = StockHistoricalDataClient(keys.key, keys.secret, raw_data=True, url_override=data_base)
        self._stocks = _bounded(stocks, line, data_base, DATA_METHODS)

    def trading(self, method: str, path: str, data: Mapping[str, Any] | None = None) -> Any:
        call = getattr(self._trading, method.lower())
        return call(path, None if data is None else dict(data))

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> Mapping[str, Sequence[Any]]:
        from alpaca.data.requests import CorporateActionsRequest

        # The library's default limit is of entries in all: without one it reads page after page.
        wish = CorporateActionsRequest(symbols=list(symbols), start=start, end=end, limit=None)
        found: Mapping[str, Sequence[Any]] = self._actions.get_corporate_actions(wish)
        return found

    def bars(
        self, symbols: Sequence[str], start: datetime, end: datetime, adjustment: str, feed: str
    ) -> Mapping[str, Any]:
        """Daily bars, every page: {symbol: [{t, o, h, l, c, v}]}."""
        from alpaca.data.enums import Adjustment, DataFeed
        from alpaca.data.requests import StockBarsRequest
        from alpaca.data.timeframe import TimeFrame, TimeFrameUnit

        wish = StockBarsRequest(
            symbol_or_symbols=list(symbols),
            timeframe=TimeFrame(1, TimeFrameUnit.Day),
            start=start,
            end=end,
            adjustment=Adjustment(adjustment),
            feed=DataFeed(feed),
        )
        found: Mapping[str, Any] = self._stocks.get_stock_bars(wish)
        return found

    def latest_trades(self, symbols: Sequence[str], feed: str) -> Mapping[str, Any]:
        """{symbol: {t, p}}."""
        from alpaca.data.enums import DataFeed
        from alpaca.data.requests import StockLatestTradeRequest

        wish = StockLatestTradeRequest(symbol_or_symbols=list(symbols), feed=DataFeed(feed))
        found: Mapping[str, Any] = self._stocks.get_stock_latest_trade(wish)
        return found


def open_alpaca(
    clock: Clock, url: str = "", data_url: str = "", *, feed: FeedName = "iex", seed: int = 0, listen: bool = True
) -> tuple[AlpacaAccount, AlpacaFeed]:
    """The paper account of the keys in the environment, and its prices; both stay under one limit of requests.

    url, data_url: empty for Alpaca's own hosts; else this machine's. feed: "iex" or "sip". seed: of the pauses between
    the stream's attempts. listen: keep the stream of trade updates.
    Raises AddressNotAllowed for any other address, before the keys are read; SetupError without keys or alpaca-py.
    """
    trading_base, data_base = trading_address(url or PAPER), data_address(data_url or _data_beside(url))
    keys, line = keys_from_environment(), Line(clock)
    wire = AlpacaPyWire(trading_base, data_base, keys, line)
    stream = UpdateStream(trading_base, keys, clock, seed).start() if listen else NoStream()
    account = AlpacaAccount(wire, line, keys, stream)
    return account, AlpacaFeed(account, wire, clock, feed)


def _data_beside(url: str) -> str:
    """Where prices come from when only the trading address is told: the same machine, or Alpaca."""
    return DATA if not url or trading_address(url) == PAPER else url


def _bounded(client: Any, line: Line, base: str, methods: tuple[str, ...]) -> Any:
    client._session = bounded_session(line, base, methods)
    client._retry = 0
    return client
