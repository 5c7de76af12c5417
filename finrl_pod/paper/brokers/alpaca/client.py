"""Adapter to alpaca-py, the client library of Alpaca."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal

from finrl_pod.errors import SetupError
from finrl_pod.paper.brokers.alpaca.credentials import Keys
from finrl_pod.paper.brokers.alpaca.transport import DATA_METHODS, TRADING_METHODS, RequestContext, bounded_session

Timeframe = Literal["1Day", "1Hour", "1Min"]


class AlpacaPyLibrary:
    """alpaca-py with a bounded session and without retries. Prices are the JSON of all pages, by symbol."""

    name = "alpaca"

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
        """Corporate actions of the data API by group."""
        from alpaca.data.requests import CorporateActionsRequest

        # The default limit of the library is for all pages together; None reads every page.
        request = CorporateActionsRequest(symbols=list(symbols), start=start, end=end, limit=None)
        response: Mapping[str, Sequence[Any]] = self._actions.get_corporate_actions(request)
        return response

    def bars(
        self, timeframe: Timeframe, symbols: Sequence[str], start: datetime, end: datetime, adjustment: str, feed: str
    ) -> Mapping[str, Any]:
        """Bars: {symbol: [{t, o, h, l, c, v}]}."""
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
        """Last trades: {symbol: {t, p}}."""
        from alpaca.data.enums import DataFeed
        from alpaca.data.requests import StockLatestTradeRequest

        request = StockLatestTradeRequest(symbol_or_symbols=list(symbols), feed=DataFeed(feed))
        response: Mapping[str, Any] = self._stocks.get_stock_latest_trade(request)
        return response


def bound_client(client: Any, context: RequestContext, base: str, methods: tuple[str, ...]) -> Any:
    """A client of alpaca-py with a bounded session and without retries."""
    client._session = bounded_session(context, base, methods)
    client._retry = 0
    return client
