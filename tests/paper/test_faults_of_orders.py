"""What a broker can do to an order, and what must come of it. The daemon's own loop runs, on a simulated market."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.errors import AuthenticationError, BrokerUnavailable
from finrl_pod.paper.execution.intents import Intent
from finrl_pod.paper.execution.risk import RiskState
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, enqueue, read_result
from finrl_pod.paper.records import (
    Ambiguous,
    Confirmed,
    OrderRequest,
    OrderStatus,
    OrderType,
    Reason,
    Rejected,
    Side,
    TimeInForce,
)
from finrl_pod.paper.settings import RiskSettings
from tests.paper.factories import SimulatedDaemon, config, first, own_orders

pytestmark = pytest.mark.slow

DAY = date(2024, 1, 9)  # the first orders fill here


def test_a_post_that_hangs_is_looked_up_and_sent_again_under_its_one_id(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["submit"] = first(1, lambda true, request: Ambiguous("timeout"))
    sim.day(DAY)
    lookups = [a[0] for name, a in sim.broker.calls if name == "order_by_client_id"]
    assert len(lookups) >= 2  # one "not found" proves nothing
    posts = [a[0].client_order_id for name, a in sim.broker.calls if name == "submit"]
    assert posts.count(lookups[0]) == 2
    assert len(own_orders(sim)) == len(set(posts))
    sim.check_agreement()


def test_an_answer_lost_after_the_broker_took_the_order_leads_to_one_order(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def lose(true: Any, request: Any) -> Any:
        true(request)
        return Ambiguous("504 after it was taken")

    sim.broker.overrides["submit"] = lose
    sim.day(DAY)
    assert sim.broker.called("submit") == len(own_orders(sim))
    assert all(o.status is OrderStatus.FILLED for o in own_orders(sim))
    sim.check_agreement()


def test_an_order_that_only_appears_later_is_adopted(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["submit"] = first(1, lambda true, request: (true(request), Ambiguous("504"))[1])
    sim.broker.overrides["order_by_client_id"] = first(2, lambda true, name: None)
    sim.day(DAY)
    assert sim.broker.called("submit") == len(own_orders(sim))
    sim.check_agreement()


def test_while_nobody_answers_look_ups_an_order_stays_unknown_and_nothing_else_is_sent_for_it(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sent: list[str] = []

    def silent(true: Any, request: Any) -> Any:
        sent.append(request.client_order_id)
        return Ambiguous("timeout")

    def down(true: Any, *arguments: Any) -> Any:
        raise BrokerUnavailable("no answer")

    sim.broker.overrides["submit"] = silent
    sim.broker.overrides["order_by_client_id"] = down
    sim.day(DAY)
    assert len(sent) == len(set(sent)) == 2
    assert not own_orders(sim)


def outage(sim: SimulatedDaemon, minutes: float) -> None:
    """The broker answers neither orders nor look-ups for some minutes from the first order on; the order is lost."""
    until: list[datetime] = []

    def silent(true: Any, request: Any) -> Any:
        until.append(sim.clock.now() + timedelta(minutes=minutes))
        return true(request) if sim.clock.now() >= until[0] else Ambiguous("timeout")

    def down(true: Any, *arguments: Any) -> Any:
        if sim.clock.now() < until[0]:
            raise BrokerUnavailable("no answer")
        return true(*arguments)

    sim.broker.overrides |= {"submit": silent, "order_by_client_id": down}


def test_an_order_in_doubt_is_looked_for_after_the_outage_and_sent_again(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    outage(sim, 2)
    sim.day(DAY)
    assert len(own_orders(sim)) == 2
    assert all(o.status is OrderStatus.FILLED for o in own_orders(sim))
    assert not sim.daemon._c.ledger.open
    names = {message.split()[3] for _, kind, message in sim.alerts if kind == "doubt"}
    assert names
    assert len([1 for _, kind, _ in sim.alerts if kind == "doubt"]) == len(names)  # each is told once
    sim.check_agreement()


def test_an_order_in_doubt_until_its_deadline_is_given_up(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    outage(sim, 40)
    sim.day(DAY, hour=16)
    assert not sim.daemon._c.ledger.open
    assert {sim.state_of(i) for i in sim.intents()} == {"expired"}
    assert "lost" in sim.alert_kinds()
    assert not own_orders(sim)
    asked = sim.broker.called("order_by_client_id")
    sim.day(DAY)
    assert sim.broker.called("order_by_client_id") == asked
    sim.check_agreement()


def test_one_name_that_nobody_answers_for_does_not_hold_up_the_others(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    outage(sim, 2)
    after_outage = sim.broker.overrides["order_by_client_id"]

    def never_for_the_first(true: Any, name: str) -> Any:
        if name == names[0]:
            raise BrokerUnavailable("no answer")
        return after_outage(true, name)

    names = ["?"]
    submit = sim.broker.overrides["submit"]

    def noted(true: Any, request: OrderRequest) -> Any:
        names[0] = request.client_order_id if names[0] == "?" else names[0]
        return submit(true, request)

    sim.broker.overrides |= {"submit": noted, "order_by_client_id": never_for_the_first}
    sim.day(DAY)
    assert [o.status for o in own_orders(sim)] == [OrderStatus.FILLED]
    assert own_orders(sim)[0].client_order_id != names[0]


def test_a_taken_name_is_success_only_for_the_same_order(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["submit"] = first(1, lambda true, request: (true(request), true(request))[1])
    sim.day(DAY)
    assert sim.daemon._c.risk.state is RiskState.ACTIVE
    sim.check_agreement()


def test_a_taken_name_of_another_order_halts(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def squat(true: Any, request: OrderRequest) -> Any:
        true(OrderRequest(request.client_order_id, request.symbol, request.side, Decimal(1), request.time_in_force))
        return true(request)

    sim.broker.overrides["submit"] = first(1, squat)
    sim.day(DAY)
    assert sim.daemon._c.risk.state is RiskState.HALTED
    assert "halted" in sim.alert_kinds()
    assert len(own_orders(sim)) == 1


@pytest.mark.parametrize("reason", [Reason.INVALID, Reason.BUYING_POWER, Reason.NOT_TRADABLE])
def test_a_refusal_ends_the_intent_and_the_next_decision_trades(tmp_path: Path, reason: Reason) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["submit"] = first(1, lambda true, request: Rejected(reason, "no"))
    sim.day(DAY)
    refused = next(i for i in sim.intents() if sim.state_of(i) == "rejected")
    assert sum(1 for name, a in sim.broker.calls if name == "submit" and a[0].symbol == refused.symbol) == 1
    sim.day(date(2024, 1, 12))
    assert {o.symbol for o in own_orders(sim)} >= {refused.symbol}
    sim.check_agreement()


def test_shares_held_for_another_order_are_waited_for_with_a_capped_retry(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(DAY)

    def held(true: Any, request: OrderRequest) -> Any:
        return Rejected(Reason.HELD_FOR_ORDERS, "held_for_orders") if request.side is Side.SELL else true(request)

    sim.broker.overrides["submit"] = held
    sim.day(date(2024, 1, 10))
    tries = [a[0].client_order_id for name, a in sim.broker.calls if name == "submit" and a[0].side is Side.SELL]
    assert len(tries) == len(set(tries)) == 3
    sim.check_agreement()


def test_a_wash_trade_against_a_foreign_order_is_given_up_and_that_order_left_alone(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.account._shares["AA"] = Decimal(50)
    sim.run_to(datetime(2024, 1, 9, 13, tzinfo=UTC))
    sim.account.submit(OrderRequest("by-hand", "AA", Side.SELL, Decimal(5), TimeInForce.CLS))
    sim.day(DAY, hour=15)
    ours = [i for i in sim.intents() if i.symbol == "AA"]
    assert [sim.state_of(i) for i in ours] == ["rejected"]
    assert sim.account.order_by_client_id("by-hand").status is OrderStatus.FILLED  # type: ignore[union-attr]
    assert not any(name == "cancel" for name, _ in sim.broker.calls)


def test_a_limit_of_requests_is_waited_for_and_the_same_order_sent_once(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    until = []

    def limited(true: Any, request: Any) -> Any:
        until.append(sim.clock.now() + timedelta(seconds=40))
        return Rejected(Reason.RATE_LIMITED, "rate limit exceeded", retry_at=until[0])

    sim.broker.overrides["submit"] = first(1, limited)
    sim.day(DAY)
    taken = min(o.submitted_at for o in own_orders(sim))
    assert taken >= until[0]
    sim.check_agreement()


def test_refused_keys_end_the_daemon_with_an_alert(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def refuse(true: Any, request: Any) -> Any:
        raise AuthenticationError("the keys were refused (401)")

    sim.broker.overrides["submit"] = refuse
    with pytest.raises(AuthenticationError):
        sim.day(DAY)
    assert "keys" in sim.alert_kinds()
    assert not own_orders(sim)


def test_a_cancel_that_races_a_fill_books_the_fill(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    assert sim.daemon._c.ledger.live_orders()

    def late(true: Any, order_id: str) -> Any:
        sim.clock.sleep(1800)  # the auction is held meanwhile
        return true(order_id)

    sim.broker.overrides["cancel"] = first(1, late)
    number = enqueue(sim.store, CommandName.HALT, sim.clock.now())
    sim.day(DAY, hour=16)
    assert read_result(sim.store, number).message == "halted, no own order is live"
    assert all(o.status is OrderStatus.FILLED for o in own_orders(sim))
    sim.check_agreement()


@pytest.mark.parametrize("more", [-1, 0, 5])
def test_an_order_that_somebody_replaced_stays_with_its_intent(tmp_path: Path, more: int) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    old = own_orders(sim)[0]
    limit = old.limit_price * (2 if old.side is Side.BUY else Decimal("0.5"))
    request = OrderRequest("fp1.by-hand", old.symbol, old.side, old.quantity + more, old.time_in_force, old.type, limit)
    replaced = sim.account.replace(old.id, request)
    assert isinstance(replaced, Confirmed)
    sim.day(DAY)
    row = next(r for r in sim.store.rows(schema.orders) if r.client_order_id == "fp1.by-hand")
    assert (row.replaces, row.attempt) == (old.client_order_id, 1)
    after = sim.account.order_by_client_id("fp1.by-hand")
    assert after is not None
    if more > 0:  # more than was wanted: it is taken back
        assert after.status is OrderStatus.CANCELED
    else:
        assert (after.status, after.filled_quantity) == (OrderStatus.FILLED, old.quantity + more)
    assert not sim.daemon._c.ledger.external_positions()
    assert "replaced" in sim.alert_kinds()
    sim.check_agreement()
    sim.restart()
    sim.day(date(2024, 1, 10))
    assert "mismatch" not in sim.alert_kinds()
    sim.check_agreement()


def test_a_purchase_against_our_own_sale_cancels_it_first(tmp_path: Path) -> None:
    loose = RiskSettings(max_position=1.5, max_gross=1.5, max_net=1.5, max_order=1.0, daily_loss=0.9, drawdown=0.9)
    sim = SimulatedDaemon(tmp_path, config(risk=loose))
    sim.day(DAY)
    sim.run_to(datetime(2024, 1, 10, 14, 10, tzinfo=UTC))
    sale = next(o for o in own_orders(sim) if o.live and o.side is Side.SELL)
    refused: list[str] = []

    def wash(true: Any, request: OrderRequest) -> Any:
        standing = sim.account.order(sale.id)
        if request.side is Side.BUY and standing is not None and standing.live:
            refused.append(request.client_order_id)
            return Rejected(Reason.WASH_TRADE, "potential wash trade detected")
        return true(request)

    sim.broker.overrides["submit"] = wash
    manager, now = sim.daemon._c.orders, sim.clock.now()
    request = Intent(
        "test", "by-hand", sale.symbol, Side.BUY, Decimal(1), TimeInForce.OPG, OrderType.MARKET, None, Decimal(50), now,
        now + timedelta(minutes=10), now + timedelta(hours=1),
    )  # fmt: skip
    with sim.store.write() as connection:
        planned = manager.ledger.add_intents(connection, now, [request])
    manager.ledger.track(planned)
    sim.day(date(2024, 1, 10))
    assert len(refused) == 1
    assert sim.account.order(sale.id).status is OrderStatus.CANCELED  # type: ignore[union-attr]
    # Taken on the second try; the cash that the sale would have brought is what it lacks.
    assert [o.client_order_id[-2:] for o in own_orders(sim) if "byhand" in o.client_order_id] == ["b1"]
    sim.check_agreement()


def test_a_cancel_without_a_response_is_repeated(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    manager = sim.daemon._c.orders
    _, order = manager.ledger.live_orders()[0]
    sim.broker.overrides["cancel"] = first(1, lambda true, order_id: Ambiguous("504"))
    manager.cancel(order)
    assert not order.view.cancel_requested
    manager.cancel(order)
    assert order.view.cancel_requested
    manager.refresh()
    assert order.view.status is OrderStatus.CANCELED
    sim.check_agreement()
