"""Rows 29, 31, 33 and 35 to 37 against the real daemon process: external changes to its account and orders.

Buys are funded by sales and sent as DAY orders during the session; halted symbols keep them open.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from finrl_pod.fake_alpaca.account import Order
from finrl_pod.fake_alpaca.faults import Fault
from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

FUNDED_BY_SALES = {"orders": {"funding": "after_sales"}}
EXTERNAL_ORDERS = 620  # more than one page


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    with DaemonHarness(tmp_path_factory.mktemp("rows"), config=FUNDED_BY_SALES) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        days = harness.days
        harness.run_until(days[0].close + 600, lambda: add_external_orders(harness))
        harness.run_until(
            days[1].close + 600, lambda: harness.exchange.conditions.halted_symbols.update(HALTED_SYMBOLS)
        )
        # Row 36: two open buys are replaced externally; one of them fills before its replacement is accepted.
        harness.run_until(days[2].open + 600, harness.slow_clock)
        replace(harness, open_buys(harness)[0])
        harness.wait(lambda: harness.query("select * from orders where client_order_id = 'replaced-0'"))
        harness.raced = open_buys(harness)[-1]  # type: ignore[attr-defined]
        harness.server.call(lambda: race(harness, harness.raced))  # type: ignore[attr-defined]
        harness.run_clock()
        # Row 29: the daemon is suspended until the session is over, and its DAY orders expire.
        harness.run_until(
            days[3].open + 300, lambda: (harness.slow_clock(), harness.daemon.send_signal(signal.SIGSTOP))
        )  # type: ignore
        harness.stopped = [o.id for o in open_buys(harness)]  # type: ignore[attr-defined]
        harness.server.jump(datetime.fromtimestamp(days[3].close + 60, UTC))
        assert harness.daemon is not None
        harness.daemon.send_signal(signal.SIGCONT)
        harness.run_clock()
        harness.run_until(days[3].close + 1200, harness.exchange.conditions.halted_symbols.clear)
        # Rows 35 and 37: a halt just before the opening auction; the cancels arrive during the auction.
        harness.run_until(days[4].open - 20, lambda: delay_cancels(harness))
        harness.command("halt", "--wait", "0")
        harness.wait(lambda: len(harness.server.faults.waiting) == 1)
        harness.server.jump(datetime.fromtimestamp(days[4].open + 1, UTC))
        harness.wait(lambda: any(r["status"] == 422 for r in harness.requests("DELETE")))
        harness.server.faults.clear()
        harness.wait(lambda: harness.query("select state from risk_states order by id desc limit 1") == [("halted",)])
        harness.run_clock()
        harness.run_until(days[4].close, harness.kill)
        harness.daemon.wait()
        harness.launch()
        harness.run_until(days[5].close + 600, harness.slow_clock)
        harness.resumed = harness.command("resume", "--json", "--wait", "60").stdout  # type: ignore[attr-defined]
        harness.run_clock()
        harness.run_until(days[7].close + 600, harness.slow_clock)
        harness.code = harness.stop()  # type: ignore[attr-defined]
        yield harness


HALTED_SYMBOLS = ("AAPL", "AMD", "BAC", "HD", "JNJ", "JPM", "KO", "LLY", "MRK", "XOM")


def add_external_orders(harness: DaemonHarness) -> None:
    """Submit hundreds of external orders to the same account."""
    for number in range(EXTERNAL_ORDERS):
        terms = {"type": "limit", "limit_price": "1.5", "time_in_force": "day", "client_order_id": f"external-{number}"}
        order = {"symbol": "WMT", "qty": "1", "side": "buy", **terms}
        harness.exchange.submit(order, harness.exchange.now, "foreign")


def open_buys(harness: DaemonHarness) -> list[Order]:
    return [o for o in harness.exchange.open_orders() if o.origin == "client" and o.side == "buy" and o.status == "new"]


def replace(harness: DaemonHarness, order: Order) -> None:
    """Replace an order externally by one with one share less."""
    number = sum(o.client_order_id.startswith("replaced-") for o in harness.exchange.orders.values())
    harness.replace(order, qty=str((order.qty or 2) - 1), client_order_id=f"replaced-{number}")


def race(harness: DaemonHarness, order: Order) -> None:
    """Replace an order externally while it fills: the fill comes before the replacement takes effect."""
    conditions, now = harness.exchange.conditions, harness.exchange.now
    conditions.fill_delay, conditions.replace_delay = 10.0, 60.0
    harness.exchange.resume(order.symbol, now)
    harness.exchange.replace(order.id, {"qty": "1", "client_order_id": "replaced-1"}, now)
    conditions.fill_delay, conditions.replace_delay = 0.0, 0.0


def delay_cancels(harness: DaemonHarness) -> None:
    """Stop the clock and delay every cancel; the first of the two rules applies to the first cancel only."""
    harness.stop_clock()
    harness.server.faults.add([Fault("delay", method="DELETE", times=times, seconds=2.0) for times in (1, 0)])


def test_run_is_consistent(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] <= 2  # an order and its pending replacement
    assert run.code == 0  # type: ignore[attr-defined]


def test_external_orders_are_paged_through_and_not_changed(run: DaemonHarness) -> None:
    pages = [r for r in run.requests("GET", "/v2/orders") if r["query"].get("limit") == "500"]
    by_moment = [r for r in pages if r["query"].get("after", "").startswith("2019-01-02")]
    assert by_moment
    external = [o for o in run.exchange.orders.values() if o.client_order_id.startswith("external-")]
    assert len(external) == EXTERNAL_ORDERS
    assert {o.status for o in external} == {"expired"}
    touched = {r["path"].rsplit("/", 1)[-1] for r in run.requests("DELETE")}
    assert not touched & {o.id for o in external}
    assert {o.status for o in run.orders(run.days[0].date.isoformat())} == {"filled"}


def test_external_replacement_is_recorded(run: DaemonHarness) -> None:
    new = run.exchange.by_client_id["replaced-0"]
    old = run.exchange.orders[str(new.replaces)]
    assert old.status == "replaced"
    ((replaces, symbol, bar),) = run.query(
        "select o.replaces, i.symbol, i.bar from orders o join intents i on o.intent_id = i.id "
        "where o.client_order_id = 'replaced-0'"
    )
    assert (replaces, symbol, bar) == (old.client_order_id, old.symbol, run.days[1].date.isoformat())
    assert any(alert.startswith("warning replaced") for alert in run.alerts())


def test_fill_before_a_replacement_is_booked(run: DaemonHarness) -> None:
    raced: Order = run.raced  # type: ignore[attr-defined]
    assert raced.status == "filled"
    assert run.exchange.by_client_id["replaced-1"].status == "rejected"
    booked = run.query(
        "select f.quantity from fills f join orders o on f.order_id = o.id "
        f"where o.client_order_id = '{raced.client_order_id}'"
    )
    assert sum(float(q) for (q,) in booked) == float(raced.filled) > 0


def test_expired_day_orders_are_not_resent(run: DaemonHarness) -> None:
    expired = [run.exchange.orders[name] for name in run.stopped]  # type: ignore[attr-defined]
    assert expired
    assert {o.status for o in expired} == {"expired"}
    bar = run.days[2].date.isoformat()
    for order in expired:
        assert len(run.posts(bar, order.symbol)) == 1
        state = f"where o.client_order_id = '{order.client_order_id}' order by e.id desc limit 1"
        join = "from intent_events e join orders o on o.intent_id = e.intent_id "
        assert run.query(f"select e.state {join}{state}") == [("expired",)]


def test_cancel_after_a_fill_is_refused_and_the_fill_booked(run: DaemonHarness) -> None:
    refused = [r for r in run.requests("DELETE") if r["status"] == 422]
    assert refused
    bar = run.days[3].date.isoformat()
    late = [run.exchange.orders[r["path"].rsplit("/", 1)[-1]] for r in refused]
    assert {o.status for o in late} == {"filled"}
    assert any(bar.replace("-", "") in o.client_order_id for o in late)


def test_halt_survives_a_kill_until_resume(run: DaemonHarness) -> None:
    assert run.orders(run.days[4].date.isoformat()) == []
    assert json.loads(run.resumed)["outcome"] == "active"  # type: ignore[attr-defined]
    assert run.orders(run.days[6].date.isoformat())
