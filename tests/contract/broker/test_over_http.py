"""Contract of every broker over HTTP, against the fake server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from finrl_pod.errors import AuthenticationError, BrokerRejected, BrokerUnavailable
from finrl_pod.paper.brokers.factory import open_alpaca
from finrl_pod.paper.domain.records import (
    ActionKind,
    Ambiguous,
    Confirmed,
    OrderStatus,
    Reason,
    Rejected,
)
from tests.contract.broker.order_requests import DAY, order_request, rejection_reason, submit
from tests.contract.broker_setups import HttpSetup

# Raised by alpaca-py's own imports.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_order_beyond_the_buying_power_is_rejected(http: HttpSetup) -> None:
    assert rejection_reason(http.broker.submit(order_request(quantity="100000"))) is Reason.BUYING_POWER


@pytest.mark.parametrize("code", [40010001, 42210000])
def test_both_error_codes_of_a_duplicate_id_are_recognised(open_setup: Callable[..., Any], code: int) -> None:
    http = open_setup("alpaca", duplicate_code=code)
    submit(http, order_request())
    assert rejection_reason(http.broker.submit(order_request())) is Reason.DUPLICATE_ID


@pytest.mark.parametrize(
    ("kind", "rule", "accepted"),
    [
        ("answer", {"status": 504, "body": "<html>gateway</html>"}, False),
        ("answer_after", {"status": 504}, True),
        ("answer", {"status": 500}, False),
        ("answer_after", {"status": 200, "body": "<html>not json</html>"}, True),
        ("answer_after", {"status": 200, "body": '{"id": "cut'}, True),
        ("answer_after", {"status": 200, "body": {}}, True),
        ("answer_after", {"status": 200, "body": []}, True),
        ("answer_after", {"status": 307, "headers": {"Location": "http://127.0.0.1:9/v2/orders"}}, True),
        ("drop", {}, False),
        ("drop_after", {}, True),
        ("hang", {"seconds": 5}, False),
        ("hang_after", {"seconds": 5}, True),
        ("edit", {"body": {"client_order_id": "another"}}, True),
    ],
)
def test_submit_without_a_clear_response_is_ambiguous_and_sent_once(
    http: HttpSetup, kind: str, rule: dict[str, Any], accepted: bool
) -> None:
    http.add_fault(kind, method="POST", **rule)
    outcome = http.broker.submit(order_request())
    assert isinstance(outcome, Ambiguous), outcome
    assert "PKTESTKEY123" not in outcome.message
    assert len(http.requests("POST")) == 1
    found = http.broker.order_by_client_id("run-1")
    assert (found is not None) == accepted


@pytest.mark.parametrize("status", [200, 500])
def test_unreadable_positions_are_not_an_empty_portfolio(http: HttpSetup, status: int) -> None:
    http.add_fault("answer", path="/v2/positions", status=status, body="<html>", times=1)
    with pytest.raises(BrokerUnavailable):
        http.broker.positions()
    http.add_fault("answer", path="/v2/positions", status=200, body={"message": "?"})
    with pytest.raises(BrokerUnavailable):
        http.broker.positions()
    http.add_fault("drop", path="/v2/positions")
    with pytest.raises(BrokerUnavailable):
        http.broker.positions()
    http.add_fault("hang", path="/v2/positions", seconds=5)
    with pytest.raises(BrokerUnavailable):
        http.broker.positions()
    assert http.broker.positions() == ()


def test_rejected_read_raises(http: HttpSetup) -> None:
    http.add_fault("answer", path="/v2/clock", status=422, body={"code": 40010001, "message": "no"})
    with pytest.raises(BrokerRejected, match=r"422\b.*: no"):
        http.broker.clock()


@pytest.mark.parametrize(("status", "body"), [(401, {"message": "unauthorized."}), (403, {"message": "forbidden."})])
def test_refused_keys_differ_from_rejected_orders(http: HttpSetup, status: int, body: dict[str, str]) -> None:
    http.add_fault("answer", status=status, body=body, times=2)
    with pytest.raises(AuthenticationError, match="APCA_API_KEY_ID"):
        http.broker.submit(order_request())
    with pytest.raises(AuthenticationError):
        http.broker.account()


def test_unknown_keys_are_refused(open_setup: Callable[..., Any]) -> None:
    http = open_setup("alpaca", key="another", secret="key")
    with pytest.raises(AuthenticationError) as caught:
        http.broker.account()
    assert "s3cr3t" not in str(caught.value)


def test_reached_rate_limit_gives_the_time_to_retry(open_setup: Callable[..., Any]) -> None:
    http = open_setup("alpaca", rate_limit=3)
    for _ in range(3):
        http.broker.clock()
    outcome = http.broker.submit(order_request())
    assert rejection_reason(outcome) is Reason.RATE_LIMITED
    assert isinstance(outcome, Rejected)
    assert outcome.retry_at is not None
    assert 60 <= (outcome.retry_at - http.clock.now()).total_seconds() <= 62
    # Until then no request is sent: the limiter rejects the next order.
    before = len(http.requests())
    assert rejection_reason(http.broker.submit(order_request("run-2"))) is Reason.RATE_LIMITED
    assert len(http.requests()) == before
    http.jump("2024-03-01 08:01:02")
    assert isinstance(http.broker.submit(order_request("run-2")), Confirmed)


def test_unknown_statuses_and_missing_fields(http: HttpSetup) -> None:
    order = submit(http, order_request())
    http.add_fault("edit", path="/v2/orders/", body={"status": "pondering", "brand_new": {"a": 1}, "replaces": None})
    found = http.broker.order(order.id)
    assert found is not None
    assert (found.status, found.raw_status, found.live) == (OrderStatus.UNKNOWN, "pondering", True)
    http.add_fault("edit", path="/v2/account", body={"last_equity": None, "status": "NEW", "account_blocked": None})
    assert http.broker.account().cash == 100_000
    http.add_fault("edit", path="/v2/account", body={"cash": "NaN"})
    with pytest.raises(BrokerUnavailable, match="cash"):
        http.broker.account()


def test_blocked_accounts_and_untradable_symbols(http: HttpSetup) -> None:
    http.control("conditions", {"suspended": True})
    assert rejection_reason(http.broker.submit(order_request())) is Reason.BLOCKED
    http.control("conditions", {"suspended": False, "untradable": ["AAA"]})
    assert rejection_reason(http.broker.submit(order_request())) is Reason.NOT_TRADABLE
    assert not http.broker.assets(["AAA"])["AAA"].tradable


def test_short_position_has_a_negative_quantity(http: HttpSetup) -> None:
    submit(http, order_request(side="sell"))
    http.jump("2024-03-01 16:30")
    (position,) = http.broker.positions()
    assert (position.symbol, position.quantity) == ("AAA", -10)


def test_fill_during_a_pending_cancel(http: HttpSetup) -> None:
    http.jump("2024-03-01 10:00")
    http.control("conditions", {"fill_delay": 5, "cancel_delay": 10})
    order = submit(http, order_request(tif="day"))
    http.broker.order(order.id)
    assert isinstance(http.broker.cancel(order.id), Confirmed)
    http.jump("2024-03-01 10:01")
    found = http.broker.order(order.id)
    assert found is not None
    assert found.status is OrderStatus.FILLED
    assert rejection_reason(http.broker.cancel(order.id)) is Reason.NOT_CANCELABLE


def test_each_partial_fill_is_a_fill(open_setup: Callable[..., Any]) -> None:
    http = open_setup("alpaca", partial=1.0, seed=4)
    submit(http, order_request(quantity="100"))
    http.jump("2024-03-01 16:30")
    first, second = http.broker.fills_since(None).fills
    assert (first.cumulative_quantity, second.cumulative_quantity) == (first.quantity, 100)
    assert first.quantity + second.quantity == 100
    assert http.broker.fills_since(http.broker.fills_since(None).cursor).fills == ()


def test_orders_and_fills_of_several_pages(open_setup: Callable[..., Any]) -> None:
    """With a high rate limit, so that only paging is tested."""
    http = open_setup("alpaca", rate_limit=10_000)
    for i in range(510):
        http.control("orders", external_order(f"other-{i}"))
    found = http.broker.orders("all")
    assert [o.client_order_id for o in found] == [f"other-{i}" for i in range(510)]
    later = http.broker.orders("open", after=found[309].submitted_at)
    assert [o.id for o in later] == [o.id for o in found[310:]]
    http.jump("2024-03-01 16:30")
    fills = http.broker.fills_since(None)
    assert len({f.id for f in fills.fills}) == len(fills.fills) == 510
    assert len(http.broker.fills_since(fills.fills[399].id).fills) == 110


def external_order(name: str) -> dict[str, str]:
    return {
        "symbol": "AAA",
        "qty": "1",
        "side": "buy",
        "type": "market",
        "time_in_force": "opg",
        "client_order_id": name,
    }


def test_corporate_actions_are_filtered_by_ex_date(open_setup: Callable[..., Any]) -> None:
    actions = [
        {"symbol": "AAA", "ex_date": "2024-03-05", "new": 4, "old": 1},
        {"symbol": "BBB", "ex_date": "2024-03-06", "new": 1, "old": 10},
        {"symbol": "CCC", "ex_date": "2024-03-07", "kind": "dividend", "cash": 1.5},
        {"symbol": "AAA", "ex_date": "2024-03-20", "kind": "dividend", "cash": 0.5},
    ]
    http = open_setup("alpaca", actions=actions)
    found = http.broker.corporate_actions(["AAA", "BBB", "CCC"], date(2024, 3, 5), date(2024, 3, 7))
    assert [(a.kind, a.symbol, a.ex_date.day, a.ratio, a.cash) for a in found] == [
        (ActionKind.SPLIT, "AAA", 5, 4, 0),
        (ActionKind.SPLIT, "BBB", 6, Decimal("0.1"), 0),
        (ActionKind.CASH_DIVIDEND, "CCC", 7, 1, Decimal("1.5")),
    ]
    assert found == http.broker.corporate_actions(["AAA", "BBB", "CCC"], date(2024, 3, 5), date(2024, 3, 7))
    http.jump("2024-03-05 16:30")
    raw, adjusted = (http.feed.bars(["AAA"], date(2024, 3, 4), date(2024, 3, 4), a).close[0, 0] for a in ("raw", "all"))
    assert raw == pytest.approx(4 * adjusted)


def test_missing_and_faulty_bars_are_passed_on(http: HttpSetup) -> None:
    edits = [
        {"symbol": "AAA", "date": "2024-02-29", "fields": {"c": None, "o": 0}},
        {"symbol": "BBB", "date": "2024-02-28", "fields": {}},
    ]
    http.control("conditions", {"edits": edits})
    table = http.feed.bars(["AAA", "BBB"], date(2024, 2, 28), date(2024, 2, 29), "all")
    assert table.feed == "iex"
    assert table.close[1, 0] != table.close[1, 0]
    assert table.open[1, 0] == 0
    assert table.close[0, 1] != table.close[0, 1]
    assert table.close[0, 0] > 0
    http.add_fault("answer", path="/v2/stocks/bars", status=200, body={"bars": {"AAA": 7}, "next_page_token": None})
    with pytest.raises(BrokerUnavailable):
        http.feed.bars(["AAA"], date(2024, 2, 28), date(2024, 2, 29), "all")


def test_feed_without_subscription_does_not_count_as_refused_keys(open_setup: Callable[..., Any]) -> None:
    http = open_setup("alpaca", sip=False)
    http.jump("2024-03-01 16:05")
    account, feed = open_alpaca(http.clock, http.url, feed="sip")
    with pytest.raises(BrokerRejected, match="subscription"):
        feed.bars(["AAA"], DAY, DAY, "all")
    account.close()
    assert len(http.feed.bars(["AAA"], DAY, DAY, "all").times) == 1


def test_keys_are_hidden_in_repr(http: HttpSetup) -> None:
    text = repr(vars(http.broker)) + repr(http.broker) + repr(vars(http.feed))
    assert "PKTESTKEY123" not in text
    assert "s3cr3t" not in text


def test_times_are_utc(http: HttpSetup) -> None:
    order = submit(http, order_request())
    assert order.submitted_at.tzinfo is UTC
    assert order.submitted_at.replace(microsecond=0) == datetime(2024, 3, 1, 13, 0, tzinfo=UTC)
