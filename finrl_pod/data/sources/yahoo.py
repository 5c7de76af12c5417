"""Yahoo Finance through yfinance (optional: the extra `sources`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from finrl_pod.data.dates import as_utc
from finrl_pod.data.panel import check_bar
from finrl_pod.data.sources.frames import (
    ADJUSTED_CLOSE,
    Retry,
    adjusted_rows,
    check_delivered,
    clip,
    panel_of_rows,
    unfinished_bar,
)
from finrl_pod.errors import FetchError, SetupError
from finrl_pod.types import PRICE_COLUMNS, Panel

_log = logging.getLogger(__name__)

_FLAWS = (
    "Yahoo re-adjusts the whole history after every dividend and split: the same query returns other prices later.",
    "The tickers were chosen today: companies that failed or were bought in the meantime are easily left out.",
)


@dataclass(frozen=True)
class YahooSource:
    """Adjusted open, high, low and close, and volume, of regular trading hours from Yahoo Finance.

    Yahoo adjusts closes and volumes for splits; for dividends, the prices are scaled to its adjusted close here.

    session: a requests or curl_cffi session to use instead of the session of yfinance.
    """

    name = "yfinance"

    session: Any = None
    retry: Retry = field(default_factory=Retry)

    def fetch(self, symbols: tuple[str, ...], start: pd.Timestamp, end: pd.Timestamp, bar: str = "1d") -> Panel:
        """Fetch bars with start <= time <= end; a ticker is untradable at bars that only others have.

        Raises FetchError naming missing tickers or those that failed after all retries; SetupError without yfinance.
        """
        check_bar(bar)
        start, end = as_utc(start), as_utc(end)
        tables = []
        reasons = []
        for symbol in symbols:
            table, reason = self._history(symbol, start, end, bar)
            if table is None or table.empty:
                reasons.append(reason or "no bars")
            else:
                tables.append(table)
        rows = clip(pd.concat(tables, ignore_index=True), start, end) if tables else pd.DataFrame({"symbol": []})
        check_delivered(symbols, list(rows["symbol"].unique()), "Yahoo", reasons)
        rows, notes = adjusted_rows(rows, is_split_adjusted=True)
        flaws = (*_FLAWS, *notes, *unfinished_bar(rows, bar))
        return panel_of_rows(rows, bar=bar, source="yfinance", flaws=flaws, allow_gaps=True)

    def _history(
        self, symbol: str, start: pd.Timestamp, end: pd.Timestamp, bar: str
    ) -> tuple[pd.DataFrame | None, str | None]:
        """(rows, None), or (None, why Yahoo has none). Raises FetchError if the request failed."""
        try:
            import yfinance
            from yfinance.data import YfData
            from yfinance.exceptions import YFException, YFRateLimitError, YFTickerMissingError
        except ImportError:
            raise SetupError("yfinance is not installed: pip install 'finrl-pod[sources]'") from None

        # The end is exclusive. Daily bars are requested by date, intraday bars by time (Yahoo limits their span).
        if bar == "1d":
            window = {"start": start.date(), "end": (end.floor("D") + pd.Timedelta(days=1)).date()}
        else:
            window = {"start": start.tz_localize("UTC"), "end": (end + pd.Timedelta(seconds=1)).tz_localize("UTC")}

        def request() -> Any:
            # yfinance caches responses, including failures: retries would be useless.
            YfData.cache_get.cache_clear()
            ticker = yfinance.Ticker(symbol, session=self.session)
            return ticker.history(**window, interval=bar, auto_adjust=False, actions=False, timeout=self.retry.timeout)

        def transient(error: BaseException) -> bool:
            # OSError: base of requests' and curl's errors. ValueError: an error page instead of JSON.
            return isinstance(error, (OSError, ValueError, YFRateLimitError))

        try:
            with _raising(yfinance):
                history = self.retry.call(request, transient)
        except YFTickerMissingError as error:
            return None, f"{symbol}: {getattr(error, 'rationale', error)}"
        except (YFException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            _log.debug("Yahoo failed for %s", symbol, exc_info=True)
            text = f"{type(error).__name__}: {str(error).strip() or 'no reason given'}"
            raise FetchError(
                f"Yahoo did not deliver {symbol} within {self.retry.attempts} attempts ({text.splitlines()[0]}): "
                "nothing was stored; try again later"
            ) from None
        return _rows(history, symbol, bar), None


def _rows(history: pd.DataFrame, symbol: str, bar: str) -> pd.DataFrame:
    """Convert a table of yfinance to long rows, dated by session for daily bars and in UTC for intraday ones."""
    index = pd.DatetimeIndex(history.index)
    times = index.normalize() if bar == "1d" else index.tz_convert("UTC")
    columns = {c: history[c.title()].astype("float64").to_numpy() for c in (*PRICE_COLUMNS, ADJUSTED_CLOSE)}
    rows = pd.DataFrame({"time": times.tz_localize(None).as_unit("ns"), "symbol": symbol, **columns})
    return rows[rows[["close", ADJUSTED_CLOSE]].notna().all(axis=1)]


@contextmanager
def _raising(yfinance: Any) -> Iterator[None]:
    """Make yfinance raise errors instead of logging them and returning an empty table."""
    debug = yfinance.config.debug
    previous_setting = debug.hide_exceptions
    debug.hide_exceptions = False
    try:
        yield
    finally:
        debug.hide_exceptions = previous_setting
