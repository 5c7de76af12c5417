"""Unusual responses: orders of other clients, and corporate actions that name two companies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from finrl_pod.errors import BrokerUnavailable
from finrl_pod.paper.brokers.alpaca import transport
from finrl_pod.paper.brokers.alpaca.account import AlpacaAccount
from finrl_pod.paper.brokers.factory import open_alpaca
from finrl_pod.paper.domain.clocks import SystemClock
from finrl_pod.paper.domain.records import ActionKind, Ambiguous, Side

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

OWN = {
    "id": "o1", "client_order_id": "fp1.mine.20240108.AA.b0", "symbol": "AA", "side": "buy", "qty": "10",
    "filled_qty": "0", "status": "accepted", "type": "limit", "limit_price": "12", "time_in_force": "opg",
    "submitted_at": "2024-01-09T13:00:00Z",
}  # fmt: skip
MULTI_LEG = {
    "id": "o2", "client_order_id": "5f0c-theirs", "symbol": "", "side": "", "qty": "1", "filled_qty": "0",
    "status": "accepted", "type": "limit", "limit_price": "1.2", "time_in_force": "day", "order_class": "mleg",
    "submitted_at": "2024-01-09T13:00:01Z",
}  # fmt: skip


@pytest.fixture
def broker(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> AlpacaAccount:
    monkeypatch.setenv("APCA_API_KEY_ID", "PKTESTKEY123")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "s3cr3t")
    account, _ = open_alpaca(SystemClock(), httpserver.url_for("").rstrip("/"), listen=False)
    return account


@pytest.mark.parametrize(
    "external",
    [
        MULTI_LEG,
        {k: v for k, v in MULTI_LEG.items() if k not in ("symbol", "side")},
        {**MULTI_LEG, "symbol": "AA", "side": None},
    ],
    ids=["empty", "left out", "no side"],
)
def test_foreign_orders_without_symbol_or_side_are_listed(
    httpserver: HTTPServer, broker: AlpacaAccount, external: dict[str, Any]
) -> None:
    httpserver.expect_request("/v2/orders").respond_with_json([OWN, external])
    own, other = broker.orders("open")
    assert (own.symbol, own.side) == ("AA", Side.BUY)
    assert (other.client_order_id, other.quantity, other.symbol) == ("5f0c-theirs", 1, "(mleg)")


@pytest.mark.parametrize("missing", ["symbol", "side"])
def test_own_orders_must_have_symbol_and_side(httpserver: HTTPServer, broker: AlpacaAccount, missing: str) -> None:
    httpserver.expect_request("/v2/orders").respond_with_json([{**OWN, missing: ""}, MULTI_LEG])
    with pytest.raises(BrokerUnavailable, match=f"{missing} is missing"):
        broker.orders("open")


def test_rate_of_a_stock_dividend_adds_to_each_share(httpserver: HTTPServer, broker: AlpacaAccount) -> None:
    entry = {"id": "d1", "symbol": "AA", "rate": 0.05, "ex_date": "2024-01-09", "process_date": "2024-01-09"}
    page = {"corporate_actions": {"stock_dividends": [entry]}, "next_page_token": None}
    httpserver.expect_request("/v1/corporate-actions").respond_with_json(page)
    (found,) = broker.corporate_actions(["AA"], date(2024, 1, 1), date(2024, 1, 10))
    assert (found.kind, found.ratio) == (ActionKind.STOCK_DIVIDEND, Decimal("1.05"))


BOOKED = {"id": "20240109000000000::a", "date": "2024-01-09", "created_at": "2024-01-09T15:00:00Z", "net_amount": "5"}


@pytest.mark.parametrize(
    ("fields", "kind", "shares"),
    [
        ({"activity_type": "CSD", "qty": "3"}, ActionKind.TRANSFER, 0),
        ({"activity_type": "JNLC", "created_at": None}, ActionKind.TRANSFER, 0),
        ({"activity_type": "DIVNRA", "symbol": "AA", "qty": "3"}, ActionKind.CASH_DIVIDEND, 0),
        ({"activity_type": "MA", "symbol": "AA", "qty": "-3"}, ActionKind.MERGER, -3),
        ({"activity_type": "SPIN", "symbol": "AA", "qty": "3"}, ActionKind.SPIN_OFF, 3),
    ],
)
def test_activities_are_read(
    httpserver: HTTPServer, broker: AlpacaAccount, fields: dict[str, str], kind: ActionKind, shares: int
) -> None:
    skipped = [BOOKED | {"activity_type": "FEE"}, BOOKED | {"activity_type": "CSD", "status": "canceled"}]
    httpserver.expect_request("/v2/account/activities").respond_with_json([*skipped, BOOKED | fields])
    (found,) = broker.activities(datetime(2024, 1, 1, tzinfo=UTC))
    assert (found.kind, found.quantity, found.cash) == (kind, shares, Decimal(5))
    assert found.created.date() == date(2024, 1, 9)
    assert found.symbol == fields.get("symbol", "")


def merger(**symbols: str) -> dict[str, Any]:
    dates = {"process_date": "2024-01-09", "effective_date": "2024-01-09"}
    return {"id": "m1", **symbols, "rate": 41.5, **dates}


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        ({"acquirer_symbol": "ZZ", "acquiree_symbol": "AA"}, "AA"),
        ({"acquiree_symbol": "AA"}, "AA"),  # acquired by a company that is not listed
        ({"acquirer_symbol": "BB", "acquiree_symbol": "ZZ"}, "BB"),
        ({"acquirer_symbol": "BB", "acquiree_symbol": "AA"}, "AA"),
    ],
)
def test_merger_is_an_action_of_the_requested_company(
    httpserver: HTTPServer, broker: AlpacaAccount, symbols: dict[str, str], expected: str
) -> None:
    page = {"corporate_actions": {"cash_mergers": [merger(**symbols)]}, "next_page_token": None}
    httpserver.expect_request("/v1/corporate-actions").respond_with_json(page)
    (found,) = broker.corporate_actions(["AA", "BB"], date(2024, 1, 1), date(2024, 1, 10))
    assert (found.symbol, found.kind, found.ex_date) == (expected, ActionKind.MERGER, date(2024, 1, 9))
    assert all(symbol in found.detail for symbol in symbols.values())
    assert broker.corporate_actions(["CC"], date(2024, 1, 1), date(2024, 1, 10)) == ()


ACCOUNT = {"account_number": "P1", "cash": "1", "equity": "1", "buying_power": "1"}


@pytest.mark.parametrize("flag", ["account_blocked", "trading_blocked", "trade_suspended_by_user"])
def test_flag_of_an_account_says_why_it_is_blocked(httpserver: HTTPServer, broker: AlpacaAccount, flag: str) -> None:
    httpserver.expect_request("/v2/account").respond_with_json({**ACCOUNT, "account_blocked": False, flag: True})
    assert broker.account().block == flag


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_error_page_that_is_not_the_brokers_is_an_outage(
    httpserver: HTTPServer, broker: AlpacaAccount, status: int
) -> None:
    """Such as the page of a proxy: it is neither refused keys, nor a missing order, nor a rejection."""
    httpserver.expect_request("/v2/orders/x").respond_with_data("<html>no</html>", status, content_type="text/html")
    with pytest.raises(BrokerUnavailable, match=f"{status} to GET /orders/x"):
        broker.order("x")
    assert isinstance(broker.cancel("x"), Ambiguous)


def test_answer_whose_pages_have_no_end_is_unavailable(
    httpserver: HTTPServer, broker: AlpacaAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_PAGES", 3)
    endless = {"corporate_actions": {}, "next_page_token": "again"}
    httpserver.expect_request("/v1/corporate-actions").respond_with_json(endless)
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="more than 3 pages"):
            broker.corporate_actions(["AA"], date(2024, 1, 1), date(2024, 1, 10))
    fill = {"id": "f", "order_id": "o", "symbol": "AA", "side": "buy", "qty": "1", "price": "1", "cum_qty": "1"}
    page = [{**fill, "transaction_time": "2024-01-09T13:00:00Z"}] * 100
    httpserver.expect_request("/v2/account/activities/FILL").respond_with_json(page)
    with pytest.raises(BrokerUnavailable, match="have no end"):
        broker.fills_since(None)


@pytest.mark.parametrize(("opening", "close"), [("16:00", "09:30"), ("09:30", "09:30"), ("9", "16:00")])
def test_session_that_cannot_be_is_unreadable(
    httpserver: HTTPServer, broker: AlpacaAccount, opening: str, close: str
) -> None:
    day = {"date": "2024-01-09", "open": opening, "close": close}
    httpserver.expect_request("/v2/calendar").respond_with_json([day])
    with pytest.raises(BrokerUnavailable, match="unreadable response to GET /calendar"):
        broker.calendar(date(2024, 1, 1), date(2024, 1, 31))


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("body", [DEEP, "null", "7", "[]", '"text"', "{", "[[]]", '{"cash": 1e999}'])
@pytest.mark.parametrize(
    ("route", "read"),
    [
        ("/v2/account", lambda broker: broker.account()),
        ("/v2/clock", lambda broker: broker.clock()),
        ("/v2/orders/x", lambda broker: broker.order("x")),
    ],
)
def test_any_answer_is_read_or_unavailable(
    httpserver: HTTPServer, broker: AlpacaAccount, route: str, read: Callable[[AlpacaAccount], object], body: str
) -> None:
    httpserver.expect_request(route).respond_with_data(body, content_type="application/json")
    with pytest.raises(BrokerUnavailable, match=f"to GET {route.removeprefix('/v2')}") as failed:
        read(broker)
    assert len(str(failed.value)) < 500
