"""Odd numbers, dates and bodies are refused with a 4xx as Alpaca refuses them, and change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from finrl_pod.fake_alpaca.wire_format import asset_id
from tests.fake_alpaca.server_fixtures import Client, StartServer, new_york

DIGITS = "9" * 5000
ODD_NUMBERS = ("1e30", 1e30, "Infinity", "-Infinity", "NaN", "1e999999", DIGITS, "-1", "", [], {"a": 1}, True)
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.fixture
def holder(start_server: StartServer) -> Client:
    """An account that holds 10 shares of AAA during a session."""
    client = start_server(start=new_york("2024-03-01 10:00"))
    client.buy(qty="10")
    client.server.jump(new_york("2024-03-01 12:00"))
    assert client("GET", "/v2/positions/AAA")["qty"] == "10"
    return client


def refused(client: Client, method: str, path: str, **options: Any) -> bool:
    status = client.raw(method, path, **options).status_code
    return 400 <= status < 500


@pytest.mark.parametrize("number", ODD_NUMBERS, ids=lambda n: str(n)[:12])
def test_odd_numbers_of_orders_are_refused(holder: Client, number: Any) -> None:
    order = {"symbol": "AAA", "qty": "1", "side": "buy", "type": "market", "time_in_force": "day"}
    limit = {**order, "type": "limit", "limit_price": number}
    for body in ({**order, "qty": number}, limit, {**order, "qty": None, "notional": number}):
        assert refused(holder, "POST", "/v2/orders", json=body), body
    assert len(holder("GET", "/v2/orders", params={"status": "all"})) == 1


@pytest.mark.parametrize("body", [DEEP, b"\xff\xfe", b"[1]", b"{", b'"text"', b"1", b""], ids=lambda b: repr(b[:8]))
def test_odd_bodies_are_refused(holder: Client, body: bytes) -> None:
    assert refused(holder, "POST", "/v2/orders", data=body)


@pytest.mark.parametrize(
    "query",
    ["percentage=Infinity", "percentage=NaN", "percentage=1e400", "percentage=-5", "percentage=101", "qty=1e30"],
)
def test_odd_shares_of_a_position_are_not_closed(holder: Client, query: str) -> None:
    assert refused(holder, "DELETE", f"/v2/positions/AAA?{query}")
    assert holder("GET", "/v2/positions/AAA")["qty"] == "10"


@pytest.mark.parametrize(
    "path",
    [
        f"/v2/orders?limit={DIGITS}",
        f"/v2/account/activities/FILL?page_size={DIGITS}",
        f"/v2/stocks/bars?symbols=AAA&timeframe=1Day&limit={DIGITS}",
        f"/v2/stocks/bars?symbols=AAA&timeframe=1Day&page_token=page-{DIGITS}",
        "/v2/stocks/bars?symbols=AAA&timeframe=7Min&start=2024-01-02",
        "/v2/calendar?start=0001-13-01",
        "/v2/orders?after=yesterday",
    ],
    ids=lambda p: p[:40],
)
def test_odd_queries_are_refused(holder: Client, path: str) -> None:
    assert refused(holder, "GET", path)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/stocks/bars?symbols=AAA&timeframe=1Day&start=0001-01-01",
        "/v2/stocks/bars?symbols=AAA&timeframe=1Day&start=0001-01-01T00:00:00%2B14:00&end=9999-12-31T23:59:59-14:00",
        "/v2/calendar?start=0001-01-01&end=0001-01-09",
        "/v2/orders?after=0001-01-01T00:00:00%2B14:00&until=9999-12-31T23:59:59-14:00",
    ],
    ids=lambda p: p[:40],
)
def test_first_and_last_years_are_no_error_of_the_server(holder: Client, path: str) -> None:
    assert holder.raw("GET", path).status_code == 200


def test_positions_are_found_and_closed_by_asset_id(holder: Client) -> None:
    assert holder("GET", f"/v2/positions/{asset_id('AAA')}")["symbol"] == "AAA"
    assert holder("DELETE", f"/v2/positions/{asset_id('AAA')}", params={"percentage": "50"})["qty"] == "5"
    holder("GET", f"/v2/positions/{asset_id('BBB')}", 404)


CONTROLS = ("reset", "clock", "faults", "conditions")
ODD_TIMES = ("2030-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "2024-03-04", "soon", 5)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("/fake/reset", {"cash": cash}) for cash in ("many", [], "NaN", -1, "1e999999", True)),
        *((f"/fake/{name}", body) for name in CONTROLS for body in (DEEP, b"\xff", [1])),
        *(("/fake/clock", {"jump": time}) for time in ODD_TIMES),
        *(("/fake/clock", {"slow": speed}) for speed in ("fast", -1, 1e308, 10**400, None)),
        ("/fake/clock", b'{"slow": NaN}'),
        *(("/fake/conditions", {"clock_skew": seconds}) for seconds in ("NaN", 1e12, -1e12, DIGITS, [])),
        *(("/fake/conditions", {name: value}) for name in ("halted", "edits") for value in (5, [["AAA"]], "AAA")),
        ("/fake/conditions", {"fill_delay": -1, "untradable": ["AAA"]}),
        ("/fake/conditions", {"stale_after": 5}),
        ("/fake/orders", [1]),
    ],
    ids=lambda value: str(value)[:24],
)
def test_odd_requests_of_the_control_api_are_refused(holder: Client, path: str, body: Any) -> None:
    options = {"data": body} if isinstance(body, bytes) else {"json": body}
    assert refused(holder, "POST", path, **options)
    assert [holder.raw("GET", path).status_code for path in ("/v2/clock", "/v2/account", "/fake/state")] == [200] * 3
