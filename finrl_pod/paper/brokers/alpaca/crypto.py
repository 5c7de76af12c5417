"""Crypto pairs such as BTC/USD on a paper account at Alpaca: the same account, another market and other prices.

Alpaca trades pairs around the clock, in fractions, by GTC or IOC orders, without auctions, short sales or corporate
actions. Orders and prices name a pair "BTC/USD", positions "BTCUSD".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np

from finrl_pod.paper.brokers.alpaca import responses
from finrl_pod.paper.brokers.alpaca.account import AlpacaAccount
from finrl_pod.paper.brokers.alpaca.client import AlpacaPyLibrary, Timeframe, bound_client
from finrl_pod.paper.brokers.alpaca.credentials import Keys
from finrl_pod.paper.brokers.alpaca.feed import AlpacaFeed
from finrl_pod.paper.brokers.alpaca.transport import DATA_METHODS, RequestContext
from finrl_pod.paper.domain.port import Adjustment, BarTable
from finrl_pod.paper.domain.records import Asset, CorporateAction, FillPage, Position, Session


class CryptoLibrary(AlpacaPyLibrary):
    """alpaca-py with the prices of crypto pairs."""

    name = "alpaca-crypto"

    def __init__(self, trading_base: str, data_base: str, keys: Keys, context: RequestContext) -> None:
        super().__init__(trading_base, data_base, keys, context)
        from alpaca.data.historical import CryptoHistoricalDataClient

        crypto: Any = CryptoHistoricalDataClient(keys.key, keys.secret, raw_data=True, url_override=data_base)
        self._crypto = bound_client(crypto, context, data_base, DATA_METHODS)

    def bars(
        self,
        timeframe: Timeframe,
        symbols: Sequence[str],
        start: datetime,
        end: datetime,
        adjustment: str,  # noqa: ARG002
        feed: str,  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """Bars of pairs. Crypto has no adjustments and a single feed."""
        from alpaca.data.requests import CryptoBarsRequest
        from alpaca.data.timeframe import TimeFrame, TimeFrameUnit

        units = {"1Day": TimeFrameUnit.Day, "1Hour": TimeFrameUnit.Hour, "1Min": TimeFrameUnit.Minute}
        frame = TimeFrame(1, units[timeframe])
        request = CryptoBarsRequest(symbol_or_symbols=list(symbols), timeframe=frame, start=start, end=end)
        response: Mapping[str, Any] = self._crypto.get_crypto_bars(request)
        return response

    def latest_trades(self, symbols: Sequence[str], feed: str) -> Mapping[str, Any]:  # noqa: ARG002
        from alpaca.data.requests import CryptoLatestTradeRequest

        request = CryptoLatestTradeRequest(symbol_or_symbols=list(symbols))
        response: Mapping[str, Any] = self._crypto.get_crypto_latest_trade(request)
        return response


class CryptoAccount(AlpacaAccount):
    """Satisfies the `Broker` protocol for pairs; sessions are UTC days."""

    _pairs: Mapping[str, str] | None = None  # "BTCUSD" -> "BTC/USD"

    def positions(self) -> tuple[Position, ...]:
        return tuple(dataclasses.replace(p, symbol=self._pair(p.symbol)) for p in super().positions())

    def fills_since(self, cursor: str | None) -> FillPage:
        page = super().fills_since(cursor)
        fills = tuple(dataclasses.replace(fill, symbol=self._pair(fill.symbol)) for fill in page.fills)
        return FillPage(fills, page.cursor)

    def assets(self, symbols: Sequence[str]) -> Mapping[str, Asset]:
        assets_by_pair = self._all_assets()
        return {symbol: assets_by_pair[symbol] for symbol in symbols if symbol in assets_by_pair}

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> tuple[CorporateAction, ...]:  # noqa: ARG002
        return ()

    def calendar(self, start: date, end: date) -> tuple[Session, ...]:
        midnights = (datetime.combine(start, time(), UTC) + timedelta(days=k) for k in range((end - start).days + 1))
        return tuple(Session(midnight.date(), midnight, midnight + timedelta(days=1)) for midnight in midnights)

    def _all_assets(self) -> dict[str, Asset]:
        query = {"asset_class": "crypto"}
        assets = self._read(lambda read: [responses.asset(entry) for entry in read], "/assets", query)
        return {asset.symbol: dataclasses.replace(asset, fractionable=True) for asset in assets}

    def _pair(self, symbol: str) -> str:
        """The pair that a position names without its slash."""
        if "/" in symbol:
            return symbol
        if self._pairs is None:
            self._pairs = {pair.replace("/", ""): pair for pair in self._all_assets()}
        return self._pairs.get(symbol, symbol)


class CryptoFeed(AlpacaFeed):
    """Satisfies the `DataFeed` protocol: bars of UTC days, made from hourly bars."""

    def bars(self, symbols: Sequence[str], start: date, end: date, adjustment: Adjustment) -> BarTable:
        """Bars of complete UTC days. There is nothing to adjust."""
        pairs = list(dict.fromkeys(symbols))
        end = min(end, self._clock.now().date() - timedelta(days=1))
        first, last = datetime.combine(start, time(), UTC), datetime.combine(end, time(23), UTC)
        response = self._read(lambda: self._library.bars("1Hour", pairs, first, last, adjustment, self._feed))
        rows: dict[tuple[str, date], list[float]] = {}
        with self._account.boundary("the bars"):
            for symbol, bar_time, values in sorted(self._values(response, pairs), key=lambda bar: bar[1]):
                day = bar_time.date()
                if start <= day <= end:
                    rows[symbol, day] = _merge_hours(rows.get((symbol, day)), values)
        days = sorted({day for _, day in rows})
        return self._table(np.array(days, "datetime64[D]").astype("datetime64[ns]"), days, pairs, rows)


def _merge_hours(bar: list[float] | None, hour: list[float]) -> list[float]:
    """A bar with the values of a later hour added to it."""
    if bar is None:
        return hour
    open_price, high, low, _, volume = bar
    return [open_price, max(high, hour[1]), min(low, hour[2]), hour[3], volume + hour[4]]
