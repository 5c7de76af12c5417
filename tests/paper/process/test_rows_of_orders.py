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
from tests.paper.process.harness import Rig
from tests.soak.judge import judge

pytestmark = pytest.mark.slow

BAR = "2019-01-02"  # orders decided on it go out before the opening of 2019-01-03
ORDERS = "/v2/orders$"
REFUSED = {"code": 40010001, "message": "something about this order is wrong"}
TAKEN = {"code": 40010001, "message": "client_order_id must be unique"}
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
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("rows"), FAULTS) as rig:
        rig.launch()
        rig.started()
        rig.go()
        foreign = {"symbol": "XOM", "qty": "3", "side": "buy", "type": "market", "time_in_force": "day"}
        rig.reach(rig.days[0].open + 300, lambda: rig.exchange.submit(foreign, rig.exchange.now, "foreign"))
        pages = [Fault("answer", path="/v2/positions$", times=2, body="<html>", status=200)]
        rig.reach(rig.days[1].close, lambda: rig.server.faults.add(pages))
        rig.reach(rig.days[2].close + 600, lambda: fourth(rig))
        rig.reach(rig.days[3].close + 600, lambda: fifth(rig))
        rig.reach(rig.days[4].close + 600, rig.slow)
        rig.code = rig.stop()  # type: ignore[attr-defined]
        rig.server.save()
        yield rig


def fourth(rig: Rig) -> None:
    """Orders decided on the third session's bar. XOM's other owner leaves an order to sell that never fills."""
    terms = {"type": "limit", "limit_price": "900", "time_in_force": "gtc", "client_order_id": "hand"}
    standing = {"symbol": "XOM", "qty": "3", "side": "sell", **terms}
    rig.exchange.submit(standing, rig.exchange.now, "foreign")
    rig.exchange.conditions.untradable = {"KO"}
    rig.server.faults.add(
        [
            Fault("answer_after", method="POST", path=ORDERS, symbol="AAPL", status=422, body=TAKEN),
            Fault("answer", method="POST", path=ORDERS, side="sell", status=403, body=HELD, times=2),
            Fault("answer", method="POST", path=ORDERS, side="buy", status=403, body=WASH),
        ]
    )


def fifth(rig: Rig) -> None:
    """As soon as our first order is there, somebody takes the name that the one for MRK will have."""
    rig.exchange.conditions.untradable = set()
    bar, loop, done = rig.days[3].date.isoformat(), asyncio.get_running_loop(), []

    def squat(side: Side) -> None:
        name = client_order_id("row", bar, "MRK", side, 0)
        terms = {"type": "limit", "limit_price": "1", "time_in_force": "day", "client_order_id": name}
        order = {"symbol": "WMT", "qty": "1", "side": "buy", **terms}
        rig.exchange.submit(order, rig.exchange.now, "foreign")

    def hear(kind: str, what: dict[str, Any]) -> None:
        if kind == "order" and not done and f".{bar.replace('-', '')}." in what["order"]["client_order_id"]:
            done.append(what["order"]["symbol"])
            assert done != ["MRK"]
            for side in Side:
                loop.call_soon(squat, side)

    rig.exchange.listeners.append(hear)


def test_both_invariants_hold(ran: Rig) -> None:
    verdict = judge(ran.log, ran.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] == 1
    assert verdict.facts["decisions"] == {"orders": 5}


@pytest.mark.parametrize(
    ("symbol", "asked"),
    [("AAPL", 2), ("AMD", 1), ("BAC", 2), ("HD", 2), ("JNJ", 1), ("JPM", 1), ("MRK", 1), ("XOM", 2)],
)
def test_one_order_comes_of_it_under_one_name(ran: Rig, symbol: str, asked: int) -> None:
    posts = ran.posts(BAR, symbol)
    assert len(posts) == asked
    assert len({r["body"]["client_order_id"] for r in posts}) == 1
    (order,) = ran.orders(BAR, symbol)
    assert (order.status, str(order.filled)) == ("filled", ran.intended(BAR, symbol))


@pytest.mark.parametrize("symbol", ["AAPL", "BAC", "HD"])
def test_an_order_is_looked_for_more_than_once_before_it_is_sent_again(ran: Rig, symbol: str) -> None:
    first, second = ran.posts(BAR, symbol)
    name = first["body"]["client_order_id"]
    looks = [
        r
        for r in ran.server.log.records[first["n"] : second["n"]]
        if r["kind"] == "request" and r["query"].get("client_order_id") == name and r["status"] == 404
    ]
    assert len(looks) >= 2
    assert second["arrived"] - first["arrived"] >= 30.0


@pytest.mark.parametrize("symbol", ["KO", "LLY"])
def test_a_refused_order_is_not_sent_again_and_the_next_day_is_a_new_one(ran: Rig, symbol: str) -> None:
    assert len(ran.posts(BAR, symbol)) == 1
    assert ran.orders(BAR, symbol) == []
    (order,) = ran.orders("2019-01-03", symbol)
    assert order.status == "filled"
    assert any("rejected" in alert and symbol in alert for alert in ran.alerts())


def test_a_limit_that_is_spent_is_waited_for(ran: Rig) -> None:
    first, second = ran.posts(BAR, "XOM")
    assert first["fault"] == "answer"
    assert second["arrived"] - first["arrived"] >= 1.0


def test_somebody_elses_shares_are_left_alone(ran: Rig) -> None:
    bought = ran.rows("select symbol, quantity from foreign_fills")
    assert bought == [("XOM", "3")]
    ours = sum(
        o.sign * o.filled for o in ran.server.exchange.orders.values() if o.symbol == "XOM" and o.origin == "client"
    )
    assert ran.server.exchange.ledger.qty("XOM") == ours + 3


def test_positions_that_cannot_be_read_stop_the_trading_until_they_can(ran: Rig) -> None:
    failed = [
        r for r in ran.server.log.records if r["kind"] == "request" and r["path"] == "/v2/positions" and r["fault"]
    ]
    assert len(failed) == 2
    assert any("unavailable" in alert for alert in ran.alerts())
    third = [r for r in ran.server.log.records if r["kind"] == "request" and r["method"] == "POST" and ".20190103." in
             r["body"]["client_order_id"]]  # fmt: skip
    assert third
    assert min(r["n"] for r in third) > max(r["n"] for r in failed)


def test_a_taken_name_is_ours_where_the_order_is_the_same(ran: Rig) -> None:
    bar = ran.days[2].date.isoformat()
    (post,) = ran.posts(bar, "AAPL")
    assert post["fault"] == "answer_after"
    (order,) = ran.orders(bar, "AAPL")
    assert (order.status, str(order.filled)) == ("filled", ran.intended(bar, "AAPL"))


def test_a_taken_name_of_another_order_halts(ran: Rig) -> None:
    bar = ran.days[3].date.isoformat()
    assert [p["status"] for p in ran.posts(bar, "MRK")] == [422]
    assert any(alert.startswith("critical halted") and "WMT" in alert for alert in ran.alerts())
    assert ran.rows("select state from risk_states order by id desc limit 1") == [("halted",)]
    assert not ran.requests("POST", "/v2/orders", ran.posts(bar, "MRK")[0]["n"])


def test_shares_that_are_held_are_waited_for(ran: Rig) -> None:
    refused = [r for r in ran.requests("POST") if r["status"] == 403 and "held_for_orders" in str(r["answer"])]
    assert [r["body"]["client_order_id"][-2:] for r in refused] == ["s0", "s1"]
    symbol = refused[0]["body"]["symbol"]
    order = ran.orders(ran.days[2].date.isoformat(), symbol)[-1]
    assert (order.client_order_id[-2:], order.status) == ("s2", "filled")


def test_a_wash_trade_against_somebody_else_is_given_up(ran: Rig) -> None:
    (refused,) = [r for r in ran.requests("POST") if r["status"] == 403 and "wash trade" in str(r["answer"])]
    assert ran.orders(ran.days[2].date.isoformat(), refused["body"]["symbol"]) == []
    assert ran.exchange.by_client_id["hand"].open
    assert any("wash_trade" in alert for alert in ran.alerts())
    assert not [r for r in ran.requests("DELETE") if ran.exchange.by_client_id["hand"].id in r["path"]]


def test_a_symbol_that_is_not_traded_is_skipped_and_the_rest_go_on(ran: Rig) -> None:
    bar = ran.days[2].date.isoformat()
    assert ran.posts(bar, "KO") == []
    assert any("KO is left as it is" in alert for alert in ran.alerts())
    assert len({o.symbol for o in ran.orders(bar)}) >= 6


def test_the_stream_came_back_and_nothing_was_booked_twice(ran: Rig) -> None:
    connected = [r for r in ran.server.log.records if r["kind"] == "stream" and r["what"] == "listening"]
    assert len(connected) >= 2
    doubled = ran.rows("select order_id, cumulative_quantity, count(*) from fills group by 1, 2 having count(*) > 1")
    assert doubled == []


def test_sigterm_ends_it_with_nothing_left_open(ran: Rig) -> None:
    assert ran.code == 0  # type: ignore[attr-defined]
    assert not [o for o in ran.server.exchange.open_orders() if o.origin == "client"]


def test_no_key_is_written_anywhere(ran: Rig) -> None:
    for name in ("daemon.log", "server.jsonl"):
        assert "rig-secret" not in (ran.folder / name).read_text()
    assert b"rig-secret" not in ran.journal.read_bytes()
