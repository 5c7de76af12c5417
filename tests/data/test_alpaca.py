"""Alpaca through alpaca-py, against a local server that serves bars in pages."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from finrl_pod.data.sources.alpaca import AlpacaSource
from finrl_pod.data.sources.frames import Retry
from finrl_pod.errors import DataError, FetchError, SetupError

# alpaca-py's own imports, hidden from users, as Python hides DeprecationWarnings of libraries.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")

KEY, SECRET = "PKTESTKEY123", "s3cr3t/of+alpaca"
START, END = pd.Timestamp("2024-01-02"), pd.Timestamp("2024-01-04")
NO_WAIT = Retry(attempts=3, first_wait=0.0, longest_wait=0.0, timeout=1.0)
DAYS = ("2024-01-02T05:00:00Z", "2024-01-03T05:00:00Z", "2024-01-04T05:00:00Z", "2024-01-05T05:00:00Z")


def bar_of(t: str, close: float) -> dict[str, Any]:
    return {"t": t, "o": close - 1, "h": close + 2, "l": close - 2, "c": close, "v": 100, "n": 3, "vw": close}


class Alpaca:
    """Serves `bars` sorted by symbol and time, `page` bars per page; sends `failures` first."""

    def __init__(self) -> None:
        self.bars: dict[str, list[dict[str, Any]]] = {}
        self.page = 2
        self.failures: list[Response] = []
        self.requests: list[Request] = []

    def answer(self, request: Request) -> Response:
        self.requests.append(request)
        if self.failures:
            return self.failures.pop(0)
        symbols = request.args["symbols"].split(",")
        low, high = (pd.Timestamp(request.args[k]) for k in ("start", "end"))
        flat = [
            (symbol, bar)
            for symbol in sorted(self.bars)
            for bar in self.bars[symbol]
            if symbol in symbols and low <= pd.Timestamp(bar["t"]) <= high
        ]
        first = int(request.args.get("page_token", 0))
        page: dict[str, list[dict[str, Any]]] = {}
        for symbol, bar in flat[first : first + self.page]:
            page.setdefault(symbol, []).append(bar)
        more = str(first + self.page) if first + self.page < len(flat) else None
        return Response(json.dumps({"bars": page, "next_page_token": more}))


@pytest.fixture
def alpaca(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> Alpaca:
    monkeypatch.setenv("APCA_API_KEY_ID", KEY)
    monkeypatch.setenv("APCA_API_SECRET_KEY", SECRET)
    monkeypatch.setenv("APCA_API_DATA_URL", httpserver.url_for("").rstrip("/"))
    answers = Alpaca()
    httpserver.expect_request("/v2/stocks/bars").respond_with_handler(answers.answer)
    return answers


def test_all_pages_are_read_and_tickers_keep_the_requested_order(alpaca: Alpaca) -> None:
    alpaca.bars = {"AAA": [bar_of(t, 10.0 + i) for i, t in enumerate(DAYS)],
                   "BBB": [bar_of(t, 20.0 + i) for i, t in enumerate(DAYS)]}  # fmt: skip
    panel = AlpacaSource(retry=NO_WAIT).fetch(("BBB", "AAA"), START, END, "1d")
    assert panel.symbols == ("BBB", "AAA")
    assert [str(t) for t in panel.times.astype("datetime64[m]")] == [f"2024-01-0{d}T00:00" for d in (2, 3, 4)]
    np.testing.assert_array_equal(panel.close, [[20, 10], [21, 11], [22, 12]])
    assert panel.volume is not None
    assert panel.volume[0, 0] == 100
    assert len(alpaca.requests) == 3
    assert {r.args["adjustment"] for r in alpaca.requests} == {"all"}
    assert {r.args["timeframe"] for r in alpaca.requests} == {"1Day"}


def test_keys_go_into_the_headers_and_only_get_is_used(alpaca: Alpaca) -> None:
    alpaca.bars = {"AAA": [bar_of(t, 10.0) for t in DAYS]}
    AlpacaSource(retry=NO_WAIT).fetch(("AAA",), START, END, "1d")
    for request in alpaca.requests:
        assert request.method == "GET"
        assert request.headers["APCA-API-KEY-ID"] == KEY
        assert request.headers["APCA-API-SECRET-KEY"] == SECRET
        assert KEY not in request.url


def test_anything_but_get_is_refused(alpaca: Alpaca) -> None:
    client = AlpacaSource(retry=NO_WAIT)._client(KEY, SECRET)
    with pytest.raises(FetchError, match="only GET is allowed"):
        client.post("/orders", {})
    assert not alpaca.requests


def test_intraday_bars_are_in_utc_and_flag_extended_hours(alpaca: Alpaca) -> None:
    alpaca.bars = {"AAA": [bar_of("2024-01-02T14:30:00Z", 10.0), bar_of("2024-01-02T14:45:00Z", 11.0)]}
    panel = AlpacaSource(retry=NO_WAIT).fetch(("AAA",), START, END, "15m")
    assert [str(t)[:16] for t in panel.times] == ["2024-01-02T14:30", "2024-01-02T14:45"]
    assert alpaca.requests[0].args["timeframe"] == "15Min"
    assert any("before the opening" in flaw for flaw in panel.flaws)


def test_missing_tickers_are_named(alpaca: Alpaca) -> None:
    alpaca.bars = {"AAA": [bar_of(t, 10.0) for t in DAYS]}
    with pytest.raises(FetchError, match="Alpaca has no bars in that range for NONE, NADA:"):
        AlpacaSource(retry=NO_WAIT).fetch(("AAA", "NONE", "NADA"), START, END, "1d")
    with pytest.raises(FetchError, match="for NONE:"):
        AlpacaSource(retry=NO_WAIT).fetch(("NONE",), START, END, "1d")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_transient_errors_are_retried_per_page(alpaca: Alpaca, status: int) -> None:
    alpaca.bars = {"AAA": [bar_of(t, 10.0) for t in DAYS]}
    alpaca.failures = [Response('{"message": "later"}', status)] * 2
    panel = AlpacaSource(retry=NO_WAIT).fetch(("AAA",), START, END, "1d")
    assert len(panel.times) == 3
    assert [r.args.get("page_token") for r in alpaca.requests] == [None, None, None, "2"]


def test_persistent_errors_raise_after_all_attempts(alpaca: Alpaca) -> None:
    alpaca.failures = [Response('{"message": "rate limit exceeded"}', 429)] * 9
    with pytest.raises(FetchError, match=r"Alpaca responded 429 .*rate limit exceeded.*wait a minute"):
        AlpacaSource(retry=NO_WAIT).fetch(("AAA",), START, END, "1d")
    assert len(alpaca.requests) == NO_WAIT.attempts


def test_rejections_are_not_retried_and_keys_are_masked(alpaca: Alpaca, caplog: pytest.LogCaptureFixture) -> None:
    alpaca.failures = [Response(f'{{"message": "forbidden for {KEY} with {SECRET}"}}', 403)]
    caplog.set_level(logging.DEBUG)
    source = AlpacaSource(retry=NO_WAIT)
    with pytest.raises(FetchError, match=r"Alpaca responded 403 .*check APCA_API_KEY_ID") as excinfo:
        source.fetch(("AAA",), START, END, "1d")
    assert len(alpaca.requests) == 1
    for text in (str(excinfo.value), repr(excinfo.value), repr(source), caplog.text):
        assert KEY not in text
        assert SECRET not in text
    assert excinfo.value.__suppress_context__


def test_requests_time_out(alpaca: Alpaca, httpserver: HTTPServer) -> None:
    def slow(_: Request) -> Response:
        time.sleep(0.6)
        return Response("{}")

    httpserver.expect_request("/slow/v2/stocks/bars").respond_with_handler(slow)
    source = AlpacaSource(url=httpserver.url_for("/slow"), retry=Retry(2, 0.0, 0.0, timeout=0.1))
    with pytest.raises(FetchError, match="unexpected response from Alpaca"):
        source.fetch(("AAA",), START, END, "1d")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["<html>", "[]", '{"bars": {"AAA": [{"t": "2024-01-02T05:00:00Z"}]}}', '{"x": 1}'])
def test_unexpected_responses_raise_fetch_error(alpaca: Alpaca, text: str) -> None:
    alpaca.failures = [Response(text)] * 9
    with pytest.raises(FetchError, match=r"unexpected response from Alpaca|lack the field 'o'"):
        AlpacaSource(retry=NO_WAIT).fetch(("AAA",), START, END, "1d")


def test_no_request_without_keys(alpaca: Alpaca, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APCA_API_SECRET_KEY")
    with pytest.raises(SetupError, match="APCA_API_SECRET_KEY") as excinfo:
        AlpacaSource(retry=NO_WAIT).fetch(("AAA",), START, END, "1d")
    assert KEY not in str(excinfo.value)
    assert not alpaca.requests


def test_keys_are_not_sent_unencrypted_to_other_hosts(alpaca: Alpaca) -> None:
    with pytest.raises(DataError, match="must be an https address"):
        AlpacaSource(url="http://example.com", retry=NO_WAIT).fetch(("AAA",), START, END, "1d")
