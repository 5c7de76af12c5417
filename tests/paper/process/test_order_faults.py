"""Faults of a broker over HTTP and websocket, against the real daemon process: many in one run, each on its symbol.

The daemon trades five sessions. On the second, each symbol's order meets a fault of its own; messages of the stream
are doubled, turned round, lost with their connection; somebody else trades in the account. On the third, positions
cannot be read at first. On the fourth a name is taken, shares are held, somebody stands against us, and a symbol is not
traded. On the fifth, a name is taken by somebody else's order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from finrl_pod.fake_alpaca.faults import Fault
from finrl_pod.paper.execution.intents import client_order_id
from finrl_pod.paper.records import Side
from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

BAR = "2019-01-02"  # orders decided on it go out before the opening of 2019-01-03
ORDERS = "/v2/orders$"
REFUSED = {"code": 40010001, "message": "something about this order is wrong"}
SOLD_BY_OTHERS = {"code": 40010001, "message": "client_order_id must be unique"}
HELD = {"code": 40310000, "message": "insufficient qty available for order", "held_for_orders": "7", "available": "0"}
WASH = {"code": 40310000, "message": "potential wash trade detected. use complex orders"}
POOR = {"code": 40310000, "message": "insufficient buying power", "buying_power": "0", "cost_basis": "1"}


def on(kind: str, symbol: str, **more: Any) -> Fault:
    """A fault of the symbol's second order."""
    return Fault(kind, method="POST", path=ORDERS, symbol=symbol, skip=1, **more)


FAULTS = (
    on("hang", "AAPL", seconds=5.0),
    on("answer_after", "AMD", status=504, body={"message": "gateway timeout"}),
    on("answer", "BAC", status=504, body={"message": "gateway timeout"}),
    on("drop", "HD"),
    on("drop_after", "JNJ"),
    on("answer_after", "JPM", status=200, body="<html>hello</html>", headers={"Content-Type": "text/html"}),
    on("answer", "KO", status=422, body=REFUSED),
    on("answer", "LLY", status=403, body=POOR),
    on("edit", "MRK", body={"status": "pondering", "brand_new": [1, 2]}),
    on("answer", "XOM", status=429, body={"message": "rate limit exceeded"}),
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
        foreign = {"symbol": "XOM", "qty": "3", "side": "buy", "type": "market", "time_in_force": "day"}
        harness.run_until(
            harness.days[0].open + 300, lambda: harness.exchange.submit(foreign, harness.exchange.now, "foreign")
        )
        pages = [Fault("answer", path="/v2/positions$", times=2, body="<html>", status=200)]
        harness.run_until(harness.days[1].close, lambda: harness.server.faults.add(pages))
        harness.run_until(harness.days[2].close + 600, lambda: fourth(harness))
        harness.run_until(harness.days[3].close + 600, lambda: fifth(harness))
        harness.run_until(harness.days[4].close + 600, harness.slow_clock)
        harness.code = harness.stop()  # type: ignore[attr-defined]
        harness.server.save()
        yield harness


def fourth(harness: DaemonHarness) -> None:
    """Orders decided on the third session's bar. XOM's other owner leaves an order to sell that never fills."""
    terms = {"type": "limit", "limit_price": "900", "time_in_force": "gtc", "client_order_id": "hand"}
    standing = {"symbol": "XOM", "qty": "3", "side": "sell", **terms}
    harness.exchange.submit(standing, harness.exchange.now, "foreign")
    harness.exchange.conditions.untradable = {"KO"}
    harness.server.faults.add(
        [
            Fault("answer_after", method="POST", path=ORDERS, symbol="AAPL", status=422, body=SOLD_BY_OTHERS),
            Fault("answer", method="POST", path=ORDERS, side="sell", status=403, body=HELD, times=2),
            Fault("answer", method="POST", path=ORDERS, side="buy", status=403, body=WASH),
        ]
    )


def fifth(harness: DaemonHarness) -> None:
    """As soon as our first order is there, somebody takes the name that the one for MRK will have."""
    harness.exchange.conditions.untradable = set()
    bar, loop, done = harness.days[3].date.isoformat(), asyncio.get_running_loop(), []

    def squat(side: Side) -> None:
        name = client_order_id("row", bar, "MRK", side, 0)
        terms = {"type": "limit", "limit_price": "1", "time_in_force": "day", "client_order_id": name}
        order = {"symbol": "WMT", "qty": "1", "side": "buy", **terms}
        harness.exchange.submit(order, harness.exchange.now, "foreign")

    def hear(kind: str, what: dict[str, Any]) -> None:
        if kind == "order" and not done and f".{bar.replace('-', '')}." in what["order"]["client_order_id"]:
            done.append(what["order"]["symbol"])
            assert done != ["MRK"]
            for side in Side:
                loop.call_soon(squat, side)

    harness.exchange.listeners.append(hear)


def test_both_invariants_hold(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] == 1
    assert verdict.facts["decisions"] == {"orders": 5}


@pytest.mark.parametrize(
    ("symbol", "asked"),
    [("AAPL", 2), ("AMD", 1), ("BAC", 2), ("HD", 2), ("JNJ", 1), ("JPM", 1), ("MRK", 1), ("XOM", 2)],
)
def test_one_order_comes_of_it_under_one_name(run: DaemonHarness, symbol: str, asked: int) -> None:
    posts = run.posts(BAR, symbol)
    assert len(posts) == asked
    assert len({r["body"]["client_order_id"] for r in posts}) == 1
    (order,) = run.orders(BAR, symbol)
    assert (order.status, str(order.filled)) == ("filled", run.intended(BAR, symbol))


@pytest.mark.parametrize("symbol", ["AAPL", "BAC", "HD"])
def test_an_order_is_looked_for_more_than_once_before_it_is_sent_again(run: DaemonHarness, symbol: str) -> None:
    first, second = run.posts(BAR, symbol)
    name = first["body"]["client_order_id"]
    looks = [
        r
        for r in run.server.log.records[first["n"] : second["n"]]
        if r["kind"] == "request" and r["query"].get("client_order_id") == name and r["status"] == 404
    ]
    assert len(looks) >= 2
    assert second["arrived"] - first["arrived"] >= 30.0


@pytest.mark.parametrize("symbol", ["KO", "LLY"])
def test_a_refused_order_is_not_sent_again_and_the_next_day_is_a_new_one(run: DaemonHarness, symbol: str) -> None:
    assert len(run.posts(BAR, symbol)) == 1
    assert run.orders(BAR, symbol) == []
    (order,) = run.orders("2019-01-03", symbol)
    assert order.status == "filled"
    assert any("rejected" in alert and symbol in alert for alert in run.alerts())


def test_a_limit_that_is_spent_is_waited_for(run: DaemonHarness) -> None:
    first, second = run.posts(BAR, "XOM")
    assert first["fault"] == "answer"
    assert second["arrived"] - first["arrived"] >= 1.0


def test_somebody_elses_shares_are_left_alone(run: DaemonHarness) -> None:
    bought = run.query("select symbol, quantity from foreign_fills")
    assert bought == [("XOM", "3")]
    ours = sum(
        o.sign * o.filled for o in run.server.exchange.orders.values() if o.symbol == "XOM" and o.origin == "client"
    )
    assert run.server.exchange.ledger.qty("XOM") == ours + 3


def test_positions_that_cannot_be_read_stop_the_trading_until_they_can(run: DaemonHarness) -> None:
    failed = [
        r for r in run.server.log.records if r["kind"] == "request" and r["path"] == "/v2/positions" and r["fault"]
    ]
    assert len(failed) == 2
    assert any("unavailable" in alert for alert in run.alerts())
    third = [r for r in run.server.log.records if r["kind"] == "request" and r["method"] == "POST" and ".20190103." in
             r["body"]["client_order_id"]]  # fmt: skip
    assert third
    assert min(r["n"] for r in third) > max(r["n"] for r in failed)


def test_a_taken_name_is_ours_where_the_order_is_the_same(run: DaemonHarness) -> None:
    bar = run.days[2].date.isoformat()
    (post,) = run.posts(bar, "AAPL")
    assert post["fault"] == "answer_after"
    (order,) = run.orders(bar, "AAPL")
    assert (order.status, str(order.filled)) == ("filled", run.intended(bar, "AAPL"))


def test_a_taken_name_of_another_order_halts(run: DaemonHarness) -> None:
    bar = run.days[3].date.isoformat()
    assert [p["status"] for p in run.posts(bar, "MRK")] == [422]
    assert any(alert.startswith("critical halted") and "WMT" in alert for alert in run.alerts())
    assert run.query("select state from risk_states order by id desc limit 1") == [("halted",)]
    assert not run.requests("POST", "/v2/orders", run.posts(bar, "MRK")[0]["n"])


def test_shares_that_are_held_are_waited_for(run: DaemonHarness) -> None:
    refused = [r for r in run.requests("POST") if r["status"] == 403 and "held_for_orders" in str(r["answer"])]
    assert [r["body"]["client_order_id"][-2:] for r in refused] == ["s0", "s1"]
    symbol = refused[0]["body"]["symbol"]
    order = run.orders(run.days[2].date.isoformat(), symbol)[-1]
    assert (order.client_order_id[-2:], order.status) == ("s2", "filled")


def test_a_wash_trade_against_somebody_else_is_given_up(run: DaemonHarness) -> None:
    (refused,) = [r for r in run.requests("POST") if r["status"] == 403 and "wash trade" in str(r["answer"])]
    assert run.orders(run.days[2].date.isoformat(), refused["body"]["symbol"]) == []
    assert run.exchange.by_client_id["hand"].open
    assert any("wash_trade" in alert for alert in run.alerts())
    assert not [r for r in run.requests("DELETE") if run.exchange.by_client_id["hand"].id in r["path"]]


def test_a_symbol_that_is_not_traded_is_skipped_and_the_rest_go_on(run: DaemonHarness) -> None:
    bar = run.days[2].date.isoformat()
    assert run.posts(bar, "KO") == []
    assert any("KO is not traded" in alert for alert in run.alerts())
    assert len({o.symbol for o in run.orders(bar)}) >= 6


def test_the_stream_came_back_and_nothing_was_booked_twice(run: DaemonHarness) -> None:
    connected = [r for r in run.server.log.records if r["kind"] == "stream" and r["what"] == "listening"]
    assert len(connected) >= 2
    doubled = run.query("select order_id, cumulative_quantity, count(*) from fills group by 1, 2 having count(*) > 1")
    assert doubled == []


def test_sigterm_ends_it_with_nothing_left_open(run: DaemonHarness) -> None:
    assert run.code == 0  # type: ignore[attr-defined]
    assert not [o for o in run.server.exchange.open_orders() if o.origin == "client"]


def test_no_key_is_written_anywhere(run: DaemonHarness) -> None:
    for name in ("daemon.log", "server.jsonl"):
        assert "harness-secret" not in (run.folder / name).read_text()
    assert b"harness-secret" not in run.journal.read_bytes()
