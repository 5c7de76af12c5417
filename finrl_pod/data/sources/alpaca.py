"""Alpaca market data through alpaca-py (optional: the extra `sources`).

API keys are read from the environment only, sent in request headers only, and masked in every message. Only GET
requests to the data host are made.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pandas as pd

from finrl_pod.data.dates import as_utc
from finrl_pod.data.panel import check_bar
from finrl_pod.data.sources.frames import Retry, check_delivered, clip, panel_of_rows, unfinished_bar
from finrl_pod.errors import DataError, FetchError, SetupError
from finrl_pod.masking import SecretMask, read_secrets
from finrl_pod.types import Panel

KEY, SECRET, URL = "APCA_API_KEY_ID", "APCA_API_SECRET_KEY", "APCA_API_DATA_URL"

_AMOUNT_UNIT = {"1d": (1, "Day"), "1h": (1, "Hour"), "15m": (15, "Min"), "1m": (1, "Min")}
_COLUMNS = {"o": "open", "h": "high", "l": "low", "c": "close", "v": "volume"}
_EXCHANGE_ZONE = "America/New_York"
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_FLAWS = ("The tickers were chosen today: companies that failed or were bought in the meantime are easily left out.",)
_EXTENDED = "Intraday bars of Alpaca include trades before the opening and after the close of the exchange."
_IEX = "Prices and volumes come from the IEX exchange only, a few percent of all trading."


@dataclass(frozen=True)
class AlpacaSource:
    """Adjusted open, high, low, close and volume from Alpaca.

    url: data host; None for the environment variable APCA_API_DATA_URL, else the host of Alpaca. feed: "sip", "iex", or
    None for the best available to the account.
    """

    name = "alpaca"

    url: str | None = None
    feed: str | None = None
    retry: Retry = field(default_factory=Retry)

    def fetch(self, symbols: tuple[str, ...], start: pd.Timestamp, end: pd.Timestamp, bar: str = "1d") -> Panel:
        """Fetch bars with start <= time <= end; a ticker is untradable at bars that only others have.

        Raises FetchError naming missing tickers or Alpaca's reason; SetupError without alpaca-py or keys.
        """
        check_bar(bar)
        start, end = as_utc(start), as_utc(end)
        rows = clip(_rows(self._bars(symbols, start, end, bar), bar), start, end)
        check_delivered(symbols, list(rows["symbol"].unique()), "Alpaca")
        # Alpaca sorts alphabetically; restore the requested order.
        rows["symbol"] = pd.Categorical(rows["symbol"], categories=list(dict.fromkeys(symbols)))
        rows = rows.sort_values(["symbol", "time"], kind="stable", ignore_index=True).astype({"symbol": str})
        flaws = [*_FLAWS, *unfinished_bar(rows, bar)]
        flaws += [_EXTENDED] if bar != "1d" else []
        flaws += [_IEX] if self.feed == "iex" else []
        return panel_of_rows(rows, bar=bar, source="alpaca", flaws=flaws, allow_gaps=True)

    def _bars(
        self, symbols: tuple[str, ...], start: pd.Timestamp, end: pd.Timestamp, bar: str
    ) -> dict[str, list[dict[str, Any]]]:
        """Bars of all pages: {symbol: [{t, o, h, l, c, v}]}."""
        try:
            from alpaca.common.exceptions import APIError
            from alpaca.data.requests import StockBarsRequest
            from alpaca.data.timeframe import TimeFrame, TimeFrameUnit
        except ImportError:
            raise SetupError("alpaca-py is not installed: pip install 'finrl-pod[sources]'") from None

        keys = read_secrets(KEY, SECRET, owner="your API keys of Alpaca")
        amount, unit = _AMOUNT_UNIT[bar]
        # A daily bar is dated midnight in New York, hours after midnight UTC: request one more day, clip later.
        request_end = end + pd.Timedelta(days=1) if bar == "1d" else end
        request = StockBarsRequest(
            symbol_or_symbols=list(symbols),
            timeframe=TimeFrame(amount, TimeFrameUnit(unit)),
            start=start.to_pydatetime(warn=False),
            end=request_end.to_pydatetime(warn=False),
            adjustment="all",
            feed=self.feed,
        )
        try:
            answer: dict[str, list[dict[str, Any]]] = self._client(*keys).get_stock_bars(request)
        except APIError as error:
            raise FetchError(_refusal(error.status_code, str(error), keys)) from None
        except (OSError, ValueError, AttributeError, LookupError, TypeError) as error:
            reason = SecretMask(keys).text(f"{type(error).__name__}: {error}")
            raise FetchError(f"unexpected response from Alpaca ({reason}): nothing was stored; try again") from None
        return answer

    def _client(self, key: str, secret: str) -> Any:
        """Client of alpaca-py with timeouts and one retry rule for all pages."""
        from alpaca.common.exceptions import APIError
        from alpaca.data.historical import StockHistoricalDataClient

        url = self.url or os.environ.get(URL) or None
        address = urlsplit(url or "https:")
        # Keys are sent with every request.
        if address.scheme != "https" and not (address.scheme == "http" and address.hostname in _LOOPBACK):
            raise DataError(f"{URL} must be an https address (http on this machine only), got {url!r}")
        client = StockHistoricalDataClient(key, secret, raw_data=True, url_override=url)
        # Its built-in retries wait a fixed time and skip most server errors; its requests have no timeout.
        client._retry = 0
        client._session.mount("http://", _bounded_get(self.retry.timeout))
        client._session.mount("https://", _bounded_get(self.retry.timeout))
        get = client.get

        def transient(error: BaseException) -> bool:
            return error.status_code in _TRY_AGAIN if isinstance(error, APIError) else isinstance(error, OSError)

        def with_retries(path: str, data: Any = None, **options: Any) -> Any:
            return self.retry.call(lambda: get(path, data, **options), transient)

        client.get = with_retries
        return client


def _rows(answer: dict[str, list[dict[str, Any]]], bar: str) -> pd.DataFrame:
    """Long table; daily bars carry their New York date, intraday bars their start in UTC."""
    tables = [pd.DataFrame(bars).assign(symbol=symbol) for symbol, bars in answer.items() if bars]
    if not tables:
        return pd.DataFrame({"time": pd.to_datetime([]), "symbol": []})
    table = pd.concat(tables, ignore_index=True)
    lacking = [c for c in ("t", *_COLUMNS) if c not in table.columns]
    if lacking:
        raise FetchError(f"Alpaca's bars lack the field {lacking[0]!r}: nothing was stored")
    times = pd.to_datetime(table["t"], utc=True, format="ISO8601")
    times = times.dt.tz_convert(_EXCHANGE_ZONE).dt.normalize() if bar == "1d" else times
    rows = table[list(_COLUMNS)].rename(columns=_COLUMNS).astype("float64")
    return rows.assign(time=times.dt.tz_localize(None).astype("datetime64[ns]"), symbol=table["symbol"])


def _refusal(status: int | None, text: str, keys: tuple[str, ...]) -> str:
    body = SecretMask(keys).text(" ".join(text.split()))[:200]
    if status in (401, 403):
        fix = f"check {KEY} and {SECRET}, and that the account may read this feed and range"
    elif status == 429:
        fix = "the rate limit is exceeded: wait a minute"
    else:
        fix = "correct the tickers or the range, or try again later"
    return f"Alpaca responded {status} ({body or 'no reason given'}): nothing was stored; {fix}"


def _bounded_get(timeout: float) -> Any:
    """HTTP adapter with a timeout that allows GET only."""
    from requests.adapters import HTTPAdapter

    class BoundedGet(HTTPAdapter):
        def send(self, request: Any, *args: Any, **options: Any) -> Any:
            if request.method != "GET":
                raise FetchError(f"the data source attempted a {request.method}, only GET is allowed: please report")
            return super().send(request, *args, **{**options, "timeout": timeout})

    return BoundedGet()
