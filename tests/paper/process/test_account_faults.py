"""Rows 29, 31, 33 and 35 to 37 against the real daemon process: what happens to its account, and who does it.

Purchases wait for their sales here, as DAY orders in the session; a halted symbol keeps them waiting.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from finrl_pod.fake_alpaca.faults import Fault
from finrl_pod.fake_alpaca.orders import Order
from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

LATER = {"orders": {"funding": "after_sales"}}
FOREIGN = 620  # orders of somebody else: more than a page


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    with DaemonHarness(tmp_path_factory.mktemp("rows"), config=LATER) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        days = harness.days
        harness.run_until(days[0].close + 600, lambda: crowd(harness))
        harness.run_until(days[1].close + 600, lambda: harness.exchange.conditions.halted.update(SYMBOLS_OF_HALTS))
        # Row 36: two of our waiting purchases are replaced by hand; one of them fills before that is through.
        harness.run_until(days[2].open + 600, harness.slow_clock)
        replace(harness, waiting(harness)[0])
        harness.wait(lambda: harness.query("select * from orders where client_order_id = 'hand-0'"))
        harness.raced = waiting(harness)[-1]  # type: ignore[attr-defined]
        harness.server.call(lambda: race(harness, harness.raced))  # type: ignore[attr-defined]
        harness.run_clock()
        # Row 29: the daemon does not move from here until the session is over, and its DAY orders expire.
        harness.run_until(
            days[3].open + 300, lambda: (harness.slow_clock(), harness.daemon.send_signal(signal.SIGSTOP))
        )  # type: ignore
        harness.stopped = [o.id for o in waiting(harness)]  # type: ignore[attr-defined]
        harness.server.jump(datetime.fromtimestamp(days[3].close + 60, UTC))
        assert harness.daemon is not None
        harness.daemon.send_signal(signal.SIGCONT)
        harness.run_clock()
        harness.run_until(days[3].close + 1200, harness.exchange.conditions.halted.clear)
        # Rows 35 and 37: a halt just before the opening; the cancels are under way while it is held.
        harness.run_until(days[4].open - 20, lambda: late_cancels(harness))
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


SYMBOLS_OF_HALTS = ("AAPL", "AMD", "BAC", "HD", "JNJ", "JPM", "KO", "LLY", "MRK", "XOM")


def crowd(harness: DaemonHarness) -> None:
    """Somebody else leaves hundreds of orders in the same account."""
    for number in range(FOREIGN):
        terms = {"type": "limit", "limit_price": "1.5", "time_in_force": "day", "client_order_id": f"crowd-{number}"}
        order = {"symbol": "WMT", "qty": "1", "side": "buy", **terms}
        harness.exchange.submit(order, harness.exchange.now, "foreign")


def waiting(harness: DaemonHarness) -> list[Order]:
    return [o for o in harness.exchange.open_orders() if o.origin == "client" and o.side == "buy" and o.status == "new"]


def replace(harness: DaemonHarness, order: Order) -> None:
    """What a person does on the broker's page: one share less, for our order."""
    number = sum(o.client_order_id.startswith("hand-") for o in harness.exchange.orders.values())
    harness.replace(order, qty=str((order.qty or 2) - 1), client_order_id=f"hand-{number}")


def race(harness: DaemonHarness, order: Order) -> None:
    """The same, just as the order's halt ends: it fills before the replacement is through."""
    conditions, now = harness.exchange.conditions, harness.exchange.now
    conditions.fill_delay, conditions.replace_delay = 10.0, 60.0
    harness.exchange.resume(order.symbol, now)
    harness.exchange.replace(order.id, {"qty": "1", "client_order_id": "hand-1"}, now)
    conditions.fill_delay, conditions.replace_delay = 0.0, 0.0


def late_cancels(harness: DaemonHarness) -> None:
    """Time stands and every cancel is held up. The first of the two rules has done its work with the first cancel."""
    harness.stop_clock()
    harness.server.faults.add([Fault("delay", method="DELETE", times=times, seconds=2.0) for times in (1, 0)])


def test_both_invariants_hold(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] <= 2  # an original and its replacement, on their way
    assert run.code == 0  # type: ignore[attr-defined]


def test_orders_of_others_are_paged_through_and_left_alone(run: DaemonHarness) -> None:
    pages = [r for r in run.requests("GET", "/v2/orders") if r["query"].get("limit") == "500"]
    by_moment = [r for r in pages if r["query"].get("after", "").startswith("2019-01-02")]
    assert by_moment
    foreign = [o for o in run.exchange.orders.values() if o.client_order_id.startswith("crowd-")]
    assert len(foreign) == FOREIGN
    assert {o.status for o in foreign} == {"expired"}
    touched = {r["path"].rsplit("/", 1)[-1] for r in run.requests("DELETE")}
    assert not touched & {o.id for o in foreign}
    assert {o.status for o in run.orders(run.days[0].date.isoformat())} == {"filled"}


def test_a_replacement_by_somebody_else_is_recorded_as_lineage(run: DaemonHarness) -> None:
    new = run.exchange.by_client_id["hand-0"]
    old = run.exchange.orders[str(new.replaces)]
    assert old.status == "replaced"
    ((replaces, mine, theirs),) = run.query(
        "select o.replaces, i.symbol, i.bar from orders o join intents i on o.intent_id = i.id "
        "where o.client_order_id = 'hand-0'"
    )
    assert (replaces, mine, theirs) == (old.client_order_id, old.symbol, run.days[1].date.isoformat())
    assert any(alert.startswith("warning replaced") for alert in run.alerts())


def test_a_replacement_that_a_fill_overtakes_leaves_the_original_fill(run: DaemonHarness) -> None:
    raced: Order = run.raced  # type: ignore[attr-defined]
    assert raced.status == "filled"
    assert run.exchange.by_client_id["hand-1"].status == "rejected"
    booked = run.query(
        "select f.quantity from fills f join orders o on f.order_id = o.id "
        f"where o.client_order_id = '{raced.client_order_id}'"
    )
    assert sum(float(q) for (q,) in booked) == float(raced.filled) > 0


def test_orders_that_expire_with_the_day_are_not_sent_again(run: DaemonHarness) -> None:
    expired = [run.exchange.orders[name] for name in run.stopped]  # type: ignore[attr-defined]
    assert expired
    assert {o.status for o in expired} == {"expired"}
    bar = run.days[2].date.isoformat()
    for order in expired:
        assert len(run.posts(bar, order.symbol)) == 1
        state = f"where o.client_order_id = '{order.client_order_id}' order by e.id desc limit 1"
        join = "from intent_events e join orders o on o.intent_id = e.intent_id "
        assert run.query(f"select e.state {join}{state}") == [("expired",)]


def test_a_cancel_that_comes_after_the_fill_is_refused_and_the_fill_booked(run: DaemonHarness) -> None:
    refused = [r for r in run.requests("DELETE") if r["status"] == 422]
    assert refused
    bar = run.days[3].date.isoformat()
    late = [run.exchange.orders[r["path"].rsplit("/", 1)[-1]] for r in refused]
    assert {o.status for o in late} == {"filled"}
    assert any(bar.replace("-", "") in o.client_order_id for o in late)


def test_a_halt_holds_over_a_kill_until_it_is_resumed(run: DaemonHarness) -> None:
    assert run.orders(run.days[4].date.isoformat()) == []
    assert json.loads(run.resumed)["outcome"] == "active"  # type: ignore[attr-defined]
    assert run.orders(run.days[6].date.isoformat())
