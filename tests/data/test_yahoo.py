"""Yahoo through yfinance, against a local server with the response format of Yahoo's chart endpoint."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
import requests
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from finrl_pod.data.sources.frames import Retry
from finrl_pod.data.sources.yahoo import YahooSource
from finrl_pod.errors import DataError, FetchError, SetupError

# yfinance's own calls into pandas, hidden from users, as Python hides DeprecationWarnings of libraries.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")

START, END = pd.Timestamp("2024-01-02"), pd.Timestamp("2024-01-05")
NO_WAIT = Retry(attempts=3, first_wait=0.0, longest_wait=0.0, timeout=2.0)


class Loopback(requests.Session):
    """Sends every request to the local server, regardless of its host."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.base = base

    def request(self, method: str, url: str, *args: Any, **options: Any) -> requests.Response:  # type: ignore[override]
        return super().request(method, self.base + urlsplit(url).path, *args, **options)


class Yahoo:
    """A fake server with chart objects by ticker, and responses (status, text) to send before them."""

    def __init__(self) -> None:
        self.charts: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, list[tuple[int, str]]] = {}
        self.request_counts: Counter[str] = Counter()
        self.windows: list[tuple[str, str]] = []

    def answer(self, request: Request) -> Response:
        if not request.path.startswith("/v8/finance/chart/"):
            return Response("crumb")
        symbol = request.path.rsplit("/", 1)[-1]
        self.request_counts[symbol] += 1
        if "period1" in request.args:
            period = [
                pd.Timestamp(int(request.args[k]), unit="s", tz="America/New_York") for k in ("period1", "period2")
            ]
            self.windows.append((str(period[0])[:16], str(period[1])[:16]))
        if self.failures.get(symbol):
            status, text = self.failures[symbol].pop(0)
            return Response(text, status)
        if symbol not in self.charts:
            error = {"code": "Not Found", "description": "No data found, symbol may be delisted"}
            return Response(json.dumps({"chart": {"result": None, "error": error}}), 404)
        return Response(json.dumps({"chart": {"result": [self.charts[symbol]], "error": None}}))


def chart(times: list[str], closes: list[float | None], interval: str = "1d") -> dict[str, Any]:
    """One result of the chart endpoint; adjusted closes are half the raw ones."""
    timestamps = [_seconds(t) for t in times]
    session_opens = [_seconds(day) + 34_200 for day in sorted({t[:10] for t in times})]
    zone = {"timezone": "EST", "gmtoffset": -18000}
    meta = {
        "currency": "USD", "symbol": "X", "exchangeName": "NMS", "instrumentType": "EQUITY", "priceHint": 2,
        "regularMarketTime": timestamps[-1], **zone,
        "dataGranularity": interval, "range": "", "chartPreviousClose": 1.0,
        "exchangeTimezoneName": "America/New_York", "validRanges": ["1d", "max"], "currentTradingPeriod": {},
        "tradingPeriods": [[{**zone, "start": start, "end": start + 23_400}] for start in session_opens],
    }  # fmt: skip
    quote = {
        "open": closes, "close": closes, "volume": [None if c is None else 1000 for c in closes],
        "high": [c and c + 1 for c in closes], "low": [c and c - 1 for c in closes],
    }  # fmt: skip
    indicators: dict[str, Any] = {"quote": [quote]}
    if interval == "1d":
        indicators["adjclose"] = [{"adjclose": [c and c / 2 for c in closes]}]
    return {"meta": meta, "timestamp": timestamps, "indicators": indicators}


def _seconds(time: str) -> int:
    return int(pd.Timestamp(time, tz="America/New_York").timestamp())


DAYS = ["2024-01-02 09:30", "2024-01-03 09:30", "2024-01-04 09:30", "2024-01-05 09:30"]


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep yfinance's cache of time zones and cookies out of the user's folder."""
    yfinance = pytest.importorskip("yfinance")
    yfinance.set_tz_cache_location(str(tmp_path_factory.mktemp("yfinance")))


@pytest.fixture
def yahoo(httpserver: HTTPServer) -> Yahoo:
    answers = Yahoo()
    httpserver.expect_request(re.compile(".*")).respond_with_handler(answers.answer)
    return answers


@pytest.fixture
def source(httpserver: HTTPServer, yahoo: Yahoo) -> YahooSource:
    return YahooSource(session=Loopback(httpserver.url_for("").rstrip("/")), retry=NO_WAIT)


def test_daily_bars_are_adjusted_and_dated_by_their_session(yahoo: Yahoo, source: YahooSource) -> None:
    yahoo.charts = {"YA": chart(DAYS, [10.0, 11.0, 12.0, 13.0]), "YB": chart(DAYS[1:], [20.0, 21.0, 22.0])}
    panel = source.fetch(("YB", "YA"), START, END, "1d")
    assert panel.symbols == ("YB", "YA")
    assert [str(t)[:10] for t in panel.times] == ["2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05"]
    assert panel.columns == ("open", "high", "low", "close", "volume", "split_close")
    np.testing.assert_allclose(panel.close[:, 1], [5.0, 5.5, 6.0, 6.5])
    assert panel.open is not None
    np.testing.assert_allclose(panel.open[:, 1], [5.0, 5.5, 6.0, 6.5])
    np.testing.assert_allclose(panel.close[1:, 0], [10.0, 10.5, 11.0])
    assert np.isnan(panel.close[0, 0])
    assert not panel.tradable[0, 0]
    assert panel.adjusted
    assert any("starts on 2024-01-03" in flaw for flaw in panel.flaws)


def test_a_dividend_leaves_volumes_and_dollar_volumes_as_they_were(yahoo: Yahoo, source: YahooSource) -> None:
    special = chart(DAYS, [30.0, 30.0, 20.0, 20.0])  # on the third day a third of the price is paid: no 3:2 split
    special["indicators"]["adjclose"] = [{"adjclose": [20.0] * 4}]
    yahoo.charts = {"YM": special}
    panel = source.fetch(("YM",), START, END, "1d")
    assert panel.volume is not None
    assert panel.dollar_volume is not None
    assert panel.close[:, 0].tolist() == [20.0] * 4
    assert panel.volume[:, 0].tolist() == [1000.0] * 4
    assert panel.dollar_volume[:, 0].tolist() == [30_000.0, 30_000.0, 20_000.0, 20_000.0]


def test_both_ends_of_the_range_are_included_and_nothing_beyond(yahoo: Yahoo, source: YahooSource) -> None:
    yahoo.charts = {"YC": chart(DAYS, [10.0, 11.0, 12.0, 13.0])}
    panel = source.fetch(("YC",), pd.Timestamp("2024-01-03"), pd.Timestamp("2024-01-04"), "1d")
    assert [str(t)[:10] for t in panel.times] == ["2024-01-03", "2024-01-04"]
    assert yahoo.windows == [("2024-01-03 00:00", "2024-01-05 00:00")]


def test_intraday_bars_are_in_utc(yahoo: Yahoo, source: YahooSource) -> None:
    times = ["2024-01-02 09:30", "2024-01-02 10:30", "2024-01-03 09:30"]
    yahoo.charts = {"YD": chart(times, [10.0, 11.0, 12.0], "1h")}
    panel = source.fetch(("YD",), START, END, "1h")
    assert [str(t)[:16] for t in panel.times] == ["2024-01-02T14:30", "2024-01-02T15:30", "2024-01-03T14:30"]
    assert panel.bar == "1h"
    assert yahoo.windows == [("2024-01-01 19:00", "2024-01-04 19:00")]


def test_a_missing_bar_becomes_untradable_and_is_flagged(yahoo: Yahoo, source: YahooSource) -> None:
    yahoo.charts = {"YE": chart(DAYS, [10.0, None, 12.0, 13.0]), "YF": chart(DAYS, [20.0, 21.0, 22.0, 23.0])}
    panel = source.fetch(("YE", "YF"), START, END, "1d")
    assert panel.tradable[:, 0].tolist() == [True, False, True, True]
    assert any("YE lacks 1 bar inside its life, first on 2024-01-03" in flaw for flaw in panel.flaws)


def test_missing_tickers_are_named(yahoo: Yahoo, source: YahooSource) -> None:
    yahoo.charts = {"YG": chart(DAYS, [10.0, 11.0, 12.0, 13.0])}
    with pytest.raises(FetchError, match="Yahoo has no bars in that range for YNONE, YNADA "):
        source.fetch(("YG", "YNONE", "YNADA"), START, END, "1d")


@pytest.mark.parametrize("failure", [(500, "oops"), (429, "Too Many Requests")])
def test_transient_errors_are_retried(yahoo: Yahoo, source: YahooSource, failure: tuple[int, str]) -> None:
    symbol = f"YH{failure[0]}"
    yahoo.charts = {symbol: chart(DAYS, [10.0, 11.0, 12.0, 13.0])}
    # yfinance itself retries once after an error status.
    yahoo.failures = {symbol: [failure] * 2}
    assert source.fetch((symbol,), START, END, "1d").close[0, 0] == 5.0
    assert yahoo.request_counts[symbol] > 2


def test_persistent_errors_name_the_ticker_and_the_attempts(yahoo: Yahoo, source: YahooSource) -> None:
    yahoo.failures = {"YI": [(429, "Too Many Requests")] * 50}
    with pytest.raises(FetchError, match="did not deliver YI within 3 attempts"):
        source.fetch(("YI",), START, END, "1d")
    assert yahoo.request_counts["YI"] <= 6


def test_an_unreachable_server_raises_fetch_error() -> None:
    source = YahooSource(session=Loopback("http://127.0.0.1:9"), retry=NO_WAIT)
    with pytest.raises(FetchError, match="did not deliver YJ"):
        source.fetch(("YJ",), START, END, "1d")


def test_an_unknown_bar_is_rejected_before_any_request(yahoo: Yahoo, source: YahooSource) -> None:
    with pytest.raises(DataError, match="bar must be one of 1d, 1h, 15m, 1m, got '2d'"):
        source.fetch(("YK",), START, END, "2d")
    assert not yahoo.request_counts


def test_missing_yfinance_raises_setup_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yfinance", None)
    with pytest.raises(SetupError, match="pip install"):
        YahooSource().fetch(("YL",), START, END, "1d")
