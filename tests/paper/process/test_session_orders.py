"""Rows 12 and 21 against the real daemon process, with orders sent while the market is open.

Buys are funded by sales and sent as DAY orders during the session. On the second day, each of them fills before the
response to its POST. On the third, they fill partially before their symbols are halted; each is replaced externally by
a good-till-cancelled order, and the broker acknowledges the daemon's cancels without cancelling. On the fourth morning,
the daemon's own buys are therefore still open against its sales.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from finrl_pod.fake_alpaca.account import Order
from finrl_pod.fake_alpaca.faults import Fault
from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

# Starts on a Monday, because the daemon polls its open orders until the next session.
FUNDED_BY_SALES = {"orders": {"funding": "after_sales"}, "timing": {"poll": 300.0}}
MONDAY = date(2019, 1, 7)
LATE = 0.15  # real seconds until a POST is answered
ORDERS = "/v2/orders$"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    with DaemonHarness(tmp_path_factory.mktemp("rows"), config=FUNDED_BY_SALES, start=MONDAY) as harness:
        days = harness.days
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        late = Fault("delay_after", method="POST", path=ORDERS, side="buy", times=0, seconds=LATE)
        harness.run_until(days[1].open - 3600, lambda: harness.server.faults.add([late]))
        harness.run_until(
            days[1].close + 600, lambda: (harness.server.faults.clear(), fill_partially_then_halt(harness))
        )
        harness.run_until(days[2].open + 1200, harness.slow_clock)
        harness.replaced = [make_good_till_cancelled(harness, order) for order in open_buys(harness)]  # type: ignore[attr-defined]
        harness.server.faults.add([Fault("answer", method="DELETE", times=0, status=204)])
        harness.run_clock()
        harness.run_until(days[3].open - 1860, lambda: remove_faults(harness))
        harness.run_until(days[3].close + 600, harness.slow_clock)
        harness.code = harness.stop()  # type: ignore[attr-defined]
        yield harness


def fill_partially_then_halt(harness: DaemonHarness) -> None:
    """Make each buy fill by half and halt its symbol afterwards."""
    harness.exchange.conditions.partial, harness.exchange.conditions.partial_gap = 1.0, 60.0

    def halt(kind: str, what: dict[str, Any]) -> None:
        if kind == "order" and what["event"] == "partial_fill" and what["order"]["side"] == "buy":
            harness.exchange.conditions.halted_symbols.add(what["order"]["symbol"])

    harness.exchange.listeners.insert(0, halt)


def remove_faults(harness: DaemonHarness) -> None:
    harness.server.faults.clear()
    harness.exchange.listeners.pop(0)
    harness.exchange.conditions.halted_symbols.clear()


def open_buys(harness: DaemonHarness) -> list[Order]:
    """Return the daemon's open buy orders."""
    return [o for o in harness.exchange.open_orders() if o.origin == "client" and o.side == "buy"]


def make_good_till_cancelled(harness: DaemonHarness, order: Order) -> str:
    """Replace an order externally by a good-till-cancelled one; return its new client id."""
    name = f"replaced-{order.symbol}"
    harness.replace(order, qty=str(order.remaining), time_in_force="gtc", client_order_id=name)
    return name


def test_run_is_consistent(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["decisions"] == {"orders": 4}
    assert verdict.facts["most_live_orders_of_an_intent"] <= 2  # an order and its pending replacement
    assert run.code == 0  # type: ignore[attr-defined]


def test_fill_reported_before_the_response_is_booked_once(run: DaemonHarness) -> None:
    """Row 21."""
    bar = run.days[0].date.isoformat()
    records = run.server.log.records
    filled = {r["order"]["id"]: r for r in records if r["kind"] == "order" and r["event"] == "fill"}
    early = []
    for order in run.orders(bar):
        (post,) = run.posts(bar, order.symbol)
        if order.side == "buy" and filled[order.id]["real"] < post["real"] + LATE:
            assert post["fault"] == "delay_after"
            early.append(order)
    assert len(early) >= 2
    for order in early:
        name = f"where o.client_order_id = '{order.client_order_id}'"
        booked = run.query(f"select f.quantity from fills f join orders o on f.order_id = o.id {name}")
        assert booked == [(str(order.filled),)]
        assert booked == [(run.intended(bar, order.symbol),)]
        states = run.query(
            f"select e.state from order_events e join orders o on e.order_id = o.id {name} order by e.id"
        )
        assert states[-1] == ("ended",)


def test_own_opposite_order_is_cancelled_and_the_order_resent(run: DaemonHarness) -> None:
    """Row 12."""
    washed = [r for r in run.requests("POST", "/v2/orders") if "wash trade" in str(r["answer"])]
    assert washed
    for post in washed:
        body, existing = post["body"], run.exchange.orders[post["answer"]["existing_order_id"]]
        assert (body["side"], existing.side) == ("sell", "buy")
        assert existing.client_order_id in run.replaced  # type: ignore[attr-defined]
        cancels = run.requests("DELETE", existing.id)
        assert cancels[0]["fault"] == "answer"  # acknowledged but not executed by the broker
        assert cancels[-1]["fault"] is None
        (again,) = run.orders(run.days[2].date.isoformat(), existing.symbol)
        (sent,) = [r for r in run.requests("POST") if (r["body"] or {}).get("client_order_id") == again.client_order_id]
        assert again.client_order_id[:-1] == body["client_order_id"][:-1]
        assert post["n"] < cancels[-1]["n"] < sent["n"]
        assert (existing.status, again.status) == ("canceled", "filled")
        assert str(again.filled) == run.intended(run.days[2].date.isoformat(), again.symbol)
    assert not [alert for alert in run.alerts() if "wash_trade" in alert]
