"""Broker faults over HTTP and websocket against the real daemon process: many in one run, one per symbol.

The daemon trades five sessions. On the second, each symbol's order has a different fault; stream messages are
duplicated, reordered or lost with their connection; another client trades in the account. On the third, reading
positions fails at first. On the fourth, a client id is a duplicate, shares are held, an external order causes a wash
trade, and a symbol is untradable. On the fifth, an external order uses one of the daemon's client ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from finrl_pod.fake_alpaca.faults import Fault
from finrl_pod.paper.domain.intents import client_order_id
from finrl_pod.paper.domain.records import Side
from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

BAR = "2019-01-02"  # orders decided on it go out before the opening of 2019-01-03
ORDERS = "/v2/orders$"
REFUSED = {"code": 40010001, "message": "invalid order parameters"}
DUPLICATE_ID = {"code": 40010001, "message": "client_order_id must be unique"}
HELD = {"code": 40310000, "message": "insufficient qty available for order", "held_for_orders": "7", "available": "0"}
WASH = {"code": 40310000, "message": "potential wash trade detected. use complex orders"}
NO_BUYING_POWER = {"code": 40310000, "message": "insufficient buying power", "buying_power": "0", "cost_basis": "1"}


def order_fault(kind: str, symbol: str, **more: Any) -> Fault:
    """Return a fault of the symbol's second order."""
    return Fault(kind, method="POST", path=ORDERS, symbol=symbol, skip=1, **more)


FAULTS = (
    order_fault("hang", "AAPL", seconds=5.0),
    order_fault("answer_after", "AMD", status=504, body={"message": "gateway timeout"}),
    order_fault("answer", "BAC", status=504, body={"message": "gateway timeout"}),
    order_fault("drop", "HD"),
    order_fault("drop_after", "JNJ"),
    order_fault("answer_after", "JPM", status=200, body="<html>hello</html>", headers={"Content-Type": "text/html"}),
    order_fault("answer", "KO", status=422, body=REFUSED),
    order_fault("answer", "LLY", status=403, body=NO_BUYING_POWER),
    order_fault("edit", "MRK", body={"status": "pondering", "brand_new": [1, 2]}),
    order_fault("answer", "XOM", status=429, body={"message": "rate limit exceeded"}),
    Fault("duplicate", event="fill", times=0),
    Fault("hold", event="new", times=0, seconds=0.5),
    Fault("disconnect", event="pending_new", symbol="MRK", skip=1),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    with DaemonHarness(tmp_path_factory.mktemp("rows"), FAULTS) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        external = {"symbol": "XOM", "qty": "3", "side": "buy", "type": "market", "time_in_force": "day"}
        harness.run_until(
            harness.days[0].open + 300, lambda: harness.exchange.submit(external, harness.exchange.now, "foreign")
        )
        pages = [Fault("answer", path="/v2/positions$", times=2, body="<html>", status=200)]
        harness.run_until(harness.days[1].close, lambda: harness.server.faults.add(pages))
        harness.run_until(harness.days[2].close + 600, lambda: add_fourth_session_faults(harness))
        harness.run_until(harness.days[3].close + 600, lambda: add_fifth_session_faults(harness))
        harness.run_until(harness.days[4].close + 600, harness.slow_clock)
        harness.code = harness.stop()  # type: ignore[attr-defined]
        harness.server.save()
        yield harness


def add_fourth_session_faults(harness: DaemonHarness) -> None:
    """Faults of orders decided on the third session's bar, and an external sell order of XOM that never fills."""
    terms = {"type": "limit", "limit_price": "900", "time_in_force": "gtc", "client_order_id": "external"}
    order = {"symbol": "XOM", "qty": "3", "side": "sell", **terms}
    harness.exchange.submit(order, harness.exchange.now, "foreign")
    harness.exchange.conditions.untradable = {"KO"}
    harness.server.faults.add(
        [
            Fault("answer_after", method="POST", path=ORDERS, symbol="AAPL", status=422, body=DUPLICATE_ID),
            Fault("answer", method="POST", path=ORDERS, side="sell", status=403, body=HELD, times=2),
            Fault("answer", method="POST", path=ORDERS, side="buy", status=403, body=WASH),
        ]
    )


def add_fifth_session_faults(harness: DaemonHarness) -> None:
    """After the daemon's first order, submit an external order with the client id of its MRK order."""
    harness.exchange.conditions.untradable = set()
    bar, loop, done = harness.days[3].date.isoformat(), asyncio.get_running_loop(), []

    def take_client_id(side: Side) -> None:
        client_id = client_order_id("row", bar, "MRK", side, 0)
        terms = {"type": "limit", "limit_price": "1", "time_in_force": "day", "client_order_id": client_id}
        order = {"symbol": "WMT", "qty": "1", "side": "buy", **terms}
        harness.exchange.submit(order, harness.exchange.now, "foreign")

    def listen(kind: str, what: dict[str, Any]) -> None:
        if kind == "order" and not done and f".{bar.replace('-', '')}." in what["order"]["client_order_id"]:
            done.append(what["order"]["symbol"])
            assert done != ["MRK"]
            for side in Side:
                loop.call_soon(take_client_id, side)

    harness.exchange.listeners.append(listen)


def test_run_is_consistent(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] == 1
    assert verdict.facts["decisions"] == {"orders": 5}


@pytest.mark.parametrize(
    ("symbol", "requests"),
    [("AAPL", 2), ("AMD", 1), ("BAC", 2), ("HD", 2), ("JNJ", 1), ("JPM", 1), ("MRK", 1), ("XOM", 2)],
)
def test_fault_leads_to_exactly_one_order(run: DaemonHarness, symbol: str, requests: int) -> None:
    posts = run.posts(BAR, symbol)
    assert len(posts) == requests
    assert len({r["body"]["client_order_id"] for r in posts}) == 1
    (order,) = run.orders(BAR, symbol)
    assert (order.status, str(order.filled)) == ("filled", run.intended(BAR, symbol))


@pytest.mark.parametrize("symbol", ["AAPL", "BAC", "HD"])
def test_order_is_looked_up_more_than_once_before_it_is_resent(run: DaemonHarness, symbol: str) -> None:
    first, second = run.posts(BAR, symbol)
    name = first["body"]["client_order_id"]
    lookups = [
        r
        for r in run.server.log.records[first["n"] : second["n"]]
        if r["kind"] == "request" and r["query"].get("client_order_id") == name and r["status"] == 404
    ]
    assert len(lookups) >= 2
    assert second["arrived"] - first["arrived"] >= 30.0


@pytest.mark.parametrize("symbol", ["KO", "LLY"])
def test_rejected_order_is_not_resent_and_the_next_day_sends_a_new_one(run: DaemonHarness, symbol: str) -> None:
    assert len(run.posts(BAR, symbol)) == 1
    assert run.orders(BAR, symbol) == []
    (order,) = run.orders("2019-01-03", symbol)
    assert order.status == "filled"
    assert any("rejected" in alert and symbol in alert for alert in run.alerts())


def test_rate_limited_order_is_sent_after_the_wait(run: DaemonHarness) -> None:
    first, second = run.posts(BAR, "XOM")
    assert first["fault"] == "answer"
    assert second["arrived"] - first["arrived"] >= 1.0


def test_external_shares_are_not_traded(run: DaemonHarness) -> None:
    bought = run.query("select symbol, quantity from foreign_fills")
    assert bought == [("XOM", "3")]
    own = sum(
        o.sign * o.filled for o in run.server.exchange.orders.values() if o.symbol == "XOM" and o.origin == "client"
    )
    assert run.server.exchange.ledger.qty("XOM") == own + 3


def test_unreadable_positions_stop_trading_until_they_are_readable(run: DaemonHarness) -> None:
    failed = [
        r for r in run.server.log.records if r["kind"] == "request" and r["path"] == "/v2/positions" and r["fault"]
    ]
    assert len(failed) == 2
    third = [r for r in run.server.log.records if r["kind"] == "request" and r["method"] == "POST" and ".20190103." in
             r["body"]["client_order_id"]]  # fmt: skip
    assert third
    assert min(r["n"] for r in third) > max(r["n"] for r in failed)


def test_duplicate_client_id_of_the_same_order_counts_as_accepted(run: DaemonHarness) -> None:
    bar = run.days[2].date.isoformat()
    (post,) = run.posts(bar, "AAPL")
    assert post["fault"] == "answer_after"
    (order,) = run.orders(bar, "AAPL")
    assert (order.status, str(order.filled)) == ("filled", run.intended(bar, "AAPL"))


def test_duplicate_client_id_of_another_order_halts(run: DaemonHarness) -> None:
    bar = run.days[3].date.isoformat()
    assert [p["status"] for p in run.posts(bar, "MRK")] == [422]
    assert any(alert.startswith("critical halted") and "WMT" in alert for alert in run.alerts())
    assert run.query("select state from risk_states order by id desc limit 1") == [("halted",)]
    assert not run.requests("POST", "/v2/orders", run.posts(bar, "MRK")[0]["n"])


def test_sale_of_held_shares_is_retried(run: DaemonHarness) -> None:
    refused = [r for r in run.requests("POST") if r["status"] == 403 and "held_for_orders" in str(r["answer"])]
    assert [r["body"]["client_order_id"][-2:] for r in refused] == ["s0", "s1"]
    symbol = refused[0]["body"]["symbol"]
    order = run.orders(run.days[2].date.isoformat(), symbol)[-1]
    assert (order.client_order_id[-2:], order.status) == ("s2", "filled")


def test_wash_trade_against_an_external_order_is_abandoned(run: DaemonHarness) -> None:
    (refused,) = [r for r in run.requests("POST") if r["status"] == 403 and "wash trade" in str(r["answer"])]
    assert run.orders(run.days[2].date.isoformat(), refused["body"]["symbol"]) == []
    assert run.exchange.by_client_id["external"].open
    assert any("wash_trade" in alert for alert in run.alerts())
    assert not [r for r in run.requests("DELETE") if run.exchange.by_client_id["external"].id in r["path"]]


def test_untradable_symbol_is_skipped_and_the_others_trade(run: DaemonHarness) -> None:
    bar = run.days[2].date.isoformat()
    assert run.posts(bar, "KO") == []
    assert any("KO is not traded" in alert for alert in run.alerts())
    assert len({o.symbol for o in run.orders(bar)}) >= 6


def test_stream_reconnects_and_no_fill_is_booked_twice(run: DaemonHarness) -> None:
    connected = [r for r in run.server.log.records if r["kind"] == "stream" and r["what"] == "listening"]
    assert len(connected) >= 2
    duplicates = run.query(
        "select order_id, cumulative_quantity, count(*) from fills group by 1, 2 having count(*) > 1"
    )
    assert duplicates == []


def test_sigterm_exits_without_open_orders(run: DaemonHarness) -> None:
    assert run.code == 0  # type: ignore[attr-defined]
    assert not [o for o in run.server.exchange.open_orders() if o.origin == "client"]


def test_secrets_are_not_written_to_any_file(run: DaemonHarness) -> None:
    for name in ("daemon.log", "server.jsonl"):
        assert "harness-secret" not in (run.folder / name).read_text()
    assert b"harness-secret" not in run.journal.read_bytes()
