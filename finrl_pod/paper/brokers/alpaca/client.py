"""Adapter to alpaca-py, the current client library of Alpaca and the default of paper trading."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from finrl_pod.errors import SetupError
from finrl_pod.paper.brokers.alpaca.account import AlpacaAccount, ClientLibrary, Timeframe
from finrl_pod.paper.brokers.alpaca.credentials import (
    PAPER_URL,
    Keys,
    data_address,
    default_data_url,
    keys_from_environment,
    trading_address,
)
from finrl_pod.paper.brokers.alpaca.feed import AlpacaFeed, FeedName
from finrl_pod.paper.brokers.alpaca.stream import NoStream, UpdateStream
from finrl_pod.paper.brokers.alpaca.transport import DATA_METHODS, TRADING_METHODS, RequestContext, bounded_session
from finrl_pod.paper.domain.port import Clock


class AlpacaPyLibrary:
    """alpaca-py with a bounded session and without retries. Satisfies `ClientLibrary`."""

    name = "alpaca"
    has_stream = True

    def __init__(self, trading_base: str, data_base: str, keys: Keys, context: RequestContext) -> None:
        with warnings.catch_warnings():
            # alpaca-py imports a deprecated module of websockets that is not used here.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                from alpaca.data.historical import StockHistoricalDataClient
                from alpaca.data.historical.corporate_actions import CorporateActionsClient
                from alpaca.trading.client import TradingClient
            except ImportError:
                raise SetupError("alpaca-py is not installed: pip install 'finrl-pod[paper]'") from None
        trading: Any = TradingClient(keys.key, keys.secret, paper=True, raw_data=True, url_override=trading_base)
        self.trading = bound_client(trading, context, trading_base, TRADING_METHODS)
        actions: Any = CorporateActionsClient(keys.key, keys.secret, raw_data=True, url_override=data_base)
        self._actions = bound_client(actions, context, data_base, DATA_METHODS)
        stocks: Any = StockHistoricalDataClient(keys.key, keys.secret, raw_data=True, url_override=data_base)
        self._stocks = bound_client(stocks, context, data_base, DATA_METHODS)

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> Mapping[str, Sequence[Any]]:
        from alpaca.data.requests import CorporateActionsRequest

        # The default limit of the library is for all pages together; None reads every page.
        request = CorporateActionsRequest(symbols=list(symbols), start=start, end=end, limit=None)
        response: Mapping[str, Sequence[Any]] = self._actions.get_corporate_actions(request)
        return response

    def bars(
        self, timeframe: Timeframe, symbols: Sequence[str], start: datetime, end: datetime, adjustment: str, feed: str
    ) -> Mapping[str, Any]:
        from alpaca.data.enums import Adjustment, DataFeed
        from alpaca.data.requests import StockBarsRequest
        from alpaca.data.timeframe import TimeFrame, TimeFrameUnit

        request = StockBarsRequest(
            symbol_or_symbols=list(symbols),
            timeframe=TimeFrame(1, TimeFrameUnit.Day if timeframe == "1Day" else TimeFrameUnit.Minute),
            start=start,
            end=end,
            adjustment=Adjustment(adjustment),
            feed=DataFeed(feed),
        )
        response: Mapping[str, Any] = self._stocks.get_stock_bars(request)
        return response

    def latest_trades(self, symbols: Sequence[str], feed: str) -> Mapping[str, Any]:
        from alpaca.data.enums import DataFeed
        from alpaca.data.requests import StockLatestTradeRequest

        request = StockLatestTradeRequest(symbol_or_symbols=list(symbols), feed=DataFeed(feed))
        response: Mapping[str, Any] = self._stocks.get_stock_latest_trade(request)
        return response


def open_alpaca(
    clock: Clock, url: str = "", data_url: str = "", *, library: type[ClientLibrary] = AlpacaPyLibrary,
    account: type[AlpacaAccount] = AlpacaAccount, prices: type[AlpacaFeed] = AlpacaFeed, feed: FeedName = "iex",
    listen: bool = True,
) -> tuple[AlpacaAccount, AlpacaFeed]:  # fmt: skip
    """Open the paper account of the keys in the environment and its data feed. They share one rate limit.

    url, data_url: base URLs of a server on this machine; empty for Alpaca. library, account, prices: client library,
    and the classes of the account and of its prices. feed: "iex" or "sip". listen: connect to the trade-updates
    stream, if the library has one.

    Raises AddressNotAllowed for an address off the allow-list, before the keys are read, and SetupError if keys or
    the library are missing.
    """
    trading_base = trading_address(url or PAPER_URL)
    data_base = data_address(data_url or default_data_url(url))
    keys = keys_from_environment()
    context = RequestContext(clock)
    client = library(trading_base, data_base, keys, context)
    is_listening = listen and client.has_stream
    stream = UpdateStream(trading_base, keys, clock).start() if is_listening else NoStream()
    opened_account = account(client, context, keys, stream)
    return opened_account, prices(opened_account, client, clock, feed)


def bound_client(client: Any, context: RequestContext, base: str, methods: tuple[str, ...]) -> Any:
    """A client of alpaca-py with a bounded session and without retries."""
    client._session = bounded_session(context, base, methods)
    client._retry = 0
    return client
