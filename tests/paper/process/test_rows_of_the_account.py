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
from tests.paper.process.harness import Rig
from tests.soak.judge import judge

pytestmark = pytest.mark.slow

LATER = {"orders": {"funding": "after_sales"}}
FOREIGN = 620  # orders of somebody else: more than a page


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("rows"), config=LATER) as rig:
        rig.launch()
        rig.started()
        rig.go()
        days = rig.days
        rig.reach(days[0].close + 600, lambda: crowd(rig))
        rig.reach(days[1].close + 600, lambda: rig.exchange.conditions.halted.update(SYMBOLS_OF_HALTS))
        # Row 36: two of our waiting purchases are replaced by hand; one of them fills before that is through.
        rig.reach(days[2].open + 600, rig.slow)
        replace(rig, waiting(rig)[0])
        rig.wait(lambda: rig.rows("select * from orders where client_order_id = 'hand-0'"))
        rig.raced = waiting(rig)[-1]  # type: ignore[attr-defined]
        rig.server.call(lambda: race(rig, rig.raced))  # type: ignore[attr-defined]
        rig.go()
        # Row 29: the daemon does not move from here until the session is over, and its DAY orders expire.
        rig.reach(days[3].open + 300, lambda: (rig.slow(), rig.daemon.send_signal(signal.SIGSTOP)))  # type: ignore
        rig.stopped = [o.id for o in waiting(rig)]  # type: ignore[attr-defined]
        rig.server.jump(datetime.fromtimestamp(days[3].close + 60, UTC))
        assert rig.daemon is not None
        rig.daemon.send_signal(signal.SIGCONT)
        rig.go()
        rig.reach(days[3].close + 1200, rig.exchange.conditions.halted.clear)
        # Rows 35 and 37: a halt just before the opening; the cancels are under way while it is held.
        rig.reach(days[4].open - 20, lambda: late_cancels(rig))
        rig.command("halt", "--wait", "0")
        rig.wait(lambda: len(rig.server.faults.waiting) == 1)
        rig.server.jump(datetime.fromtimestamp(days[4].open + 1, UTC))
        rig.wait(lambda: any(r["status"] == 422 for r in rig.requests("DELETE")))
        rig.server.faults.clear()
        rig.wait(lambda: rig.rows("select state from risk_states order by id desc limit 1") == [("halted",)])
        rig.go()
        rig.reach(days[4].close, rig.kill)
        rig.daemon.wait()
        rig.launch()
        rig.reach(days[5].close + 600, rig.slow)
        rig.resumed = rig.command("resume", "--json", "--wait", "60").stdout  # type: ignore[attr-defined]
        rig.go()
        rig.reach(days[7].close + 600, rig.slow)
        rig.code = rig.stop()  # type: ignore[attr-defined]
        yield rig


SYMBOLS_OF_HALTS = ("AAPL", "AMD", "BAC", "HD", "JNJ", "JPM", "KO", "LLY", "MRK", "XOM")


def crowd(rig: Rig) -> None:
    """Somebody else leaves hundreds of orders in the same account."""
    for number in range(FOREIGN):
        terms = {"type": "limit", "limit_price": "1.5", "time_in_force": "day", "client_order_id": f"crowd-{number}"}
        order = {"symbol": "WMT", "qty": "1", "side": "buy", **terms}
        rig.exchange.submit(order, rig.exchange.now, "foreign")


def waiting(rig: Rig) -> list[Order]:
    return [o for o in rig.exchange.open_orders() if o.origin == "client" and o.side == "buy" and o.status == "new"]


def replace(rig: Rig, order: Order) -> None:
    """What a person does on the broker's page: one share less, for our order."""
    number = sum(o.client_order_id.startswith("hand-") for o in rig.exchange.orders.values())
    rig.replace(order, qty=str((order.qty or 2) - 1), client_order_id=f"hand-{number}")


def race(rig: Rig, order: Order) -> None:
    """The same, just as the order's halt ends: it fills before the replacement is through."""
    conditions, now = rig.exchange.conditions, rig.exchange.now
    conditions.fill_delay, conditions.replace_delay = 10.0, 60.0
    rig.exchange.resume(order.symbol, now)
    rig.exchange.replace(order.id, {"qty": "1", "client_order_id": "hand-1"}, now)
    conditions.fill_delay, conditions.replace_delay = 0.0, 0.0


def late_cancels(rig: Rig) -> None:
    """Time stands and every cancel is held up. The first of the two rules has done its work with the first cancel."""
    rig.still()
    rig.server.faults.add([Fault("delay", method="DELETE", times=times, seconds=2.0) for times in (1, 0)])


def test_both_invariants_hold(ran: Rig) -> None:
    verdict = judge(ran.log, ran.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] <= 2  # an original and its replacement, on their way
    assert ran.code == 0  # type: ignore[attr-defined]


def test_orders_of_others_are_paged_through_and_left_alone(ran: Rig) -> None:
    pages = [r for r in ran.requests("GET", "/v2/orders") if r["query"].get("limit") == "500"]
    by_moment = [r for r in pages if r["query"].get("after", "").startswith("2019-01-02")]
    assert by_moment
    foreign = [o for o in ran.exchange.orders.values() if o.client_order_id.startswith("crowd-")]
    assert len(foreign) == FOREIGN
    assert {o.status for o in foreign} == {"expired"}
    touched = {r["path"].rsplit("/", 1)[-1] for r in ran.requests("DELETE")}
    assert not touched & {o.id for o in foreign}
    assert {o.status for o in ran.orders(ran.days[0].date.isoformat())} == {"filled"}


def test_a_replacement_by_somebody_else_is_recorded_as_lineage(ran: Rig) -> None:
    new = ran.exchange.by_client_id["hand-0"]
    old = ran.exchange.orders[str(new.replaces)]
    assert old.status == "replaced"
    ((replaces, mine, theirs),) = ran.rows(
        "select o.replaces, i.symbol, i.bar from orders o join intents i on o.intent_id = i.id "
        "where o.client_order_id = 'hand-0'"
    )
    assert (replaces, mine, theirs) == (old.client_order_id, old.symbol, ran.days[1].date.isoformat())
    assert any(alert.startswith("warning replaced") for alert in ran.alerts())


def test_a_replacement_that_a_fill_overtakes_leaves_the_original_fill(ran: Rig) -> None:
    raced: Order = ran.raced  # type: ignore[attr-defined]
    assert raced.status == "filled"
    assert ran.exchange.by_client_id["hand-1"].status == "rejected"
    booked = ran.rows(
        "select f.quantity from fills f join orders o on f.order_id = o.id "
        f"where o.client_order_id = '{raced.client_order_id}'"
    )
    assert sum(float(q) for (q,) in booked) == float(raced.filled) > 0


def test_orders_that_expire_with_the_day_are_not_sent_again(ran: Rig) -> None:
    expired = [ran.exchange.orders[name] for name in ran.stopped]  # type: ignore[attr-defined]
    assert expired
    assert {o.status for o in expired} == {"expired"}
    bar = ran.days[2].date.isoformat()
    for order in expired:
        assert len(ran.posts(bar, order.symbol)) == 1
        state = f"where o.client_order_id = '{order.client_order_id}' order by e.id desc limit 1"
        join = "from intent_events e join orders o on o.intent_id = e.intent_id "
        assert ran.rows(f"select e.state {join}{state}") == [("expired",)]


def test_a_cancel_that_comes_after_the_fill_is_refused_and_the_fill_booked(ran: Rig) -> None:
    refused = [r for r in ran.requests("DELETE") if r["status"] == 422]
    assert refused
    bar = ran.days[3].date.isoformat()
    late = [ran.exchange.orders[r["path"].rsplit("/", 1)[-1]] for r in refused]
    assert {o.status for o in late} == {"filled"}
    assert any(bar.replace("-", "") in o.client_order_id for o in late)


def test_a_halt_holds_over_a_kill_until_it_is_resumed(ran: Rig) -> None:
    assert ran.orders(ran.days[4].date.isoformat()) == []
    assert json.loads(ran.resumed)["outcome"] == "active"  # type: ignore[attr-defined]
    assert ran.orders(ran.days[6].date.isoformat())
