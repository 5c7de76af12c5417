"""Rows 12 and 21 against the real daemon process, with orders that meet the open market as soon as they are sent.

Purchases wait for the sales that pay for them, as DAY orders in the session. On the second day each of them fills
before its POST is answered. On the third they fill in part and are then halted; somebody makes each one stand until it
is cancelled, and the broker says yes to the daemon's cancels and forgets them. So on the fourth morning our own
purchases stand against our sales.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from finrl_pod.fake_alpaca.faults import Fault
from finrl_pod.fake_alpaca.orders import Order
from tests.paper.process.harness import Rig
from tests.soak.judge import judge

pytestmark = pytest.mark.slow

# From a Monday on: what stands is looked at again and again until the next session.
LATER = {"orders": {"funding": "after_sales"}, "timing": {"poll": 300.0}}
MONDAY = date(2019, 1, 7)
LATE = 0.15  # real seconds until a POST is answered
ORDERS = "/v2/orders$"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("rows"), config=LATER, start=MONDAY) as rig:
        days = rig.days
        rig.launch()
        rig.started()
        rig.go()
        late = Fault("delay_after", method="POST", path=ORDERS, side="buy", times=0, seconds=LATE)
        rig.reach(days[1].open - 3600, lambda: rig.server.faults.add([late]))
        rig.reach(days[1].close + 600, lambda: (rig.server.faults.clear(), in_parts(rig)))
        rig.reach(days[2].open + 1200, rig.slow)
        rig.standing = [stand(rig, order) for order in waiting(rig)]  # type: ignore[attr-defined]
        rig.server.faults.add([Fault("answer", method="DELETE", times=0, status=204)])
        rig.go()
        rig.reach(days[3].open - 1860, lambda: as_ever(rig))
        rig.reach(days[3].close + 600, rig.slow)
        rig.code = rig.stop()  # type: ignore[attr-defined]
        yield rig


def in_parts(rig: Rig) -> None:
    """From now on an order to buy fills half, and then its symbol is halted."""
    rig.exchange.conditions.partial, rig.exchange.conditions.partial_gap = 1.0, 60.0

    def halt(kind: str, what: dict[str, Any]) -> None:
        if kind == "order" and what["event"] == "partial_fill" and what["order"]["side"] == "buy":
            rig.exchange.conditions.halted.add(what["order"]["symbol"])

    rig.exchange.listeners.insert(0, halt)


def as_ever(rig: Rig) -> None:
    rig.server.faults.clear()
    rig.exchange.listeners.pop(0)
    rig.exchange.conditions.halted.clear()


def waiting(rig: Rig) -> list[Order]:
    """Our purchases that a halt keeps from filling."""
    return [o for o in rig.exchange.open_orders() if o.origin == "client" and o.side == "buy"]


def stand(rig: Rig, order: Order) -> str:
    """Make an order stand until it is cancelled; returns its name from now on."""
    name = f"hand-{order.symbol}"
    rig.replace(order, qty=str(order.remaining), time_in_force="gtc", client_order_id=name)
    return name


def test_both_invariants_hold(ran: Rig) -> None:
    verdict = judge(ran.log, ran.journal)
    assert verdict.faults == []
    assert verdict.facts["decisions"] == {"orders": 4}
    assert verdict.facts["most_live_orders_of_an_intent"] <= 2  # an original and its replacement, on their way
    assert ran.code == 0  # type: ignore[attr-defined]


def test_a_fill_that_is_told_before_the_post_is_answered_is_booked_once(ran: Rig) -> None:
    """Row 21."""
    bar = ran.days[0].date.isoformat()
    records = ran.server.log.records
    filled = {r["order"]["id"]: r for r in records if r["kind"] == "order" and r["event"] == "fill"}
    early = []
    for order in ran.orders(bar):
        (post,) = ran.posts(bar, order.symbol)
        if order.side == "buy" and filled[order.id]["real"] < post["real"] + LATE:
            assert post["fault"] == "delay_after"
            early.append(order)
    assert len(early) >= 2
    for order in early:
        name = f"where o.client_order_id = '{order.client_order_id}'"
        booked = ran.rows(f"select f.quantity from fills f join orders o on f.order_id = o.id {name}")
        assert booked == [(str(order.filled),)]
        assert booked == [(ran.intended(bar, order.symbol),)]
        states = ran.rows(f"select e.state from order_events e join orders o on e.order_id = o.id {name} order by e.id")
        assert states[-1] == ("ended",)


def test_our_own_opposite_order_is_cancelled_and_the_order_sent_once_more(ran: Rig) -> None:
    """Row 12."""
    washed = [r for r in ran.requests("POST", "/v2/orders") if "wash trade" in str(r["answer"])]
    assert washed
    for post in washed:
        body, standing = post["body"], ran.exchange.orders[post["answer"]["existing_order_id"]]
        assert (body["side"], standing.side) == ("sell", "buy")
        assert standing.client_order_id in ran.standing  # type: ignore[attr-defined]
        asked = ran.requests("DELETE", standing.id)
        assert asked[0]["fault"] == "answer"  # forgotten at the broker
        assert asked[-1]["fault"] is None
        (again,) = ran.orders(ran.days[2].date.isoformat(), standing.symbol)
        (sent,) = [r for r in ran.requests("POST") if (r["body"] or {}).get("client_order_id") == again.client_order_id]
        assert again.client_order_id[:-1] == body["client_order_id"][:-1]
        assert post["n"] < asked[-1]["n"] < sent["n"]
        assert (standing.status, again.status) == ("canceled", "filled")
        assert str(again.filled) == ran.intended(ran.days[2].date.isoformat(), again.symbol)
    assert not [alert for alert in ran.alerts() if "wash_trade" in alert]
