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
from finrl_pod.paper.journal.commands import CommandName, answered, ask
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
from tests.paper.made import World, config, first, orders

DAY = date(2024, 1, 9)  # the first orders fill here


def test_a_post_that_hangs_is_looked_up_and_sent_again_under_its_one_id(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.instead["submit"] = first(1, lambda true, request: Ambiguous("timeout"))
    world.day(DAY)
    lookups = [a[0] for name, a in world.broker.calls if name == "order_by_client_id"]
    assert len(lookups) >= 2  # one "not found" proves nothing
    posts = [a[0].client_order_id for name, a in world.broker.calls if name == "submit"]
    assert posts.count(lookups[0]) == 2
    assert len(orders(world)) == len(set(posts))
    world.check_agreement()


def test_an_answer_lost_after_the_broker_took_the_order_leads_to_one_order(tmp_path: Path) -> None:
    world = World(tmp_path)

    def lose(true: Any, request: Any) -> Any:
        true(request)
        return Ambiguous("504 after it was taken")

    world.broker.instead["submit"] = lose
    world.day(DAY)
    assert world.broker.called("submit") == len(orders(world))
    assert all(o.status is OrderStatus.FILLED for o in orders(world))
    world.check_agreement()


def test_an_order_that_only_appears_later_is_adopted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.instead["submit"] = first(1, lambda true, request: (true(request), Ambiguous("504"))[1])
    world.broker.instead["order_by_client_id"] = first(2, lambda true, name: None)
    world.day(DAY)
    assert world.broker.called("submit") == len(orders(world))
    world.check_agreement()


def test_while_nobody_answers_look_ups_an_order_stays_unknown_and_nothing_else_is_sent_for_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    sent: list[str] = []

    def silent(true: Any, request: Any) -> Any:
        sent.append(request.client_order_id)
        return Ambiguous("timeout")

    def down(true: Any, *arguments: Any) -> Any:
        raise BrokerUnavailable("no answer")

    world.broker.instead["submit"] = silent
    world.broker.instead["order_by_client_id"] = down
    world.day(DAY)
    assert len(sent) == len(set(sent)) == 2
    assert not orders(world)


def outage(world: World, minutes: float) -> None:
    """The broker answers neither orders nor look-ups for some minutes from the first order on; the order is lost."""
    until: list[datetime] = []

    def silent(true: Any, request: Any) -> Any:
        until.append(world.clock.now() + timedelta(minutes=minutes))
        return true(request) if world.clock.now() >= until[0] else Ambiguous("timeout")

    def down(true: Any, *arguments: Any) -> Any:
        if world.clock.now() < until[0]:
            raise BrokerUnavailable("no answer")
        return true(*arguments)

    world.broker.instead |= {"submit": silent, "order_by_client_id": down}


def test_an_order_in_doubt_is_looked_for_after_the_outage_and_sent_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    outage(world, 2)
    world.day(DAY)
    assert len(orders(world)) == 2
    assert all(o.status is OrderStatus.FILLED for o in orders(world))
    assert not world.daemon._p.book.open
    names = {message.split()[3] for _, kind, message in world.told if kind == "doubt"}
    assert names
    assert len([1 for _, kind, _ in world.told if kind == "doubt"]) == len(names)  # each is told once
    world.check_agreement()


def test_an_order_in_doubt_until_its_deadline_is_given_up(tmp_path: Path) -> None:
    world = World(tmp_path)
    outage(world, 40)
    world.day(DAY, hour=16)
    assert not world.daemon._p.book.open
    assert {world.state_of(i) for i in world.intents()} == {"expired"}
    assert "lost" in world.kinds()
    assert not orders(world)
    asked = world.broker.called("order_by_client_id")
    world.day(DAY)
    assert world.broker.called("order_by_client_id") == asked
    world.check_agreement()


def test_one_name_that_nobody_answers_for_does_not_hold_up_the_others(tmp_path: Path) -> None:
    world = World(tmp_path)
    outage(world, 2)
    after_outage = world.broker.instead["order_by_client_id"]

    def never_for_the_first(true: Any, name: str) -> Any:
        if name == names[0]:
            raise BrokerUnavailable("no answer")
        return after_outage(true, name)

    names = ["?"]
    submit = world.broker.instead["submit"]

    def noted(true: Any, request: OrderRequest) -> Any:
        names[0] = request.client_order_id if names[0] == "?" else names[0]
        return submit(true, request)

    world.broker.instead |= {"submit": noted, "order_by_client_id": never_for_the_first}
    world.day(DAY)
    assert [o.status for o in orders(world)] == [OrderStatus.FILLED]
    assert orders(world)[0].client_order_id != names[0]


def test_a_taken_name_is_success_only_for_the_same_order(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.instead["submit"] = first(1, lambda true, request: (true(request), true(request))[1])
    world.day(DAY)
    assert world.daemon._p.risk.state is RiskState.ACTIVE
    world.check_agreement()


def test_a_taken_name_of_another_order_halts(tmp_path: Path) -> None:
    world = World(tmp_path)

    def squat(true: Any, request: OrderRequest) -> Any:
        true(OrderRequest(request.client_order_id, request.symbol, request.side, Decimal(1), request.time_in_force))
        return true(request)

    world.broker.instead["submit"] = first(1, squat)
    world.day(DAY)
    assert world.daemon._p.risk.state is RiskState.HALTED
    assert "halted" in world.kinds()
    assert len(orders(world)) == 1


@pytest.mark.parametrize("reason", [Reason.INVALID, Reason.BUYING_POWER, Reason.NOT_TRADABLE])
def test_a_refusal_ends_the_intent_and_the_next_decision_starts_anew(tmp_path: Path, reason: Reason) -> None:
    world = World(tmp_path)
    world.broker.instead["submit"] = first(1, lambda true, request: Rejected(reason, "no"))
    world.day(DAY)
    refused = next(i for i in world.intents() if world.state_of(i) == "rejected")
    assert sum(1 for name, a in world.broker.calls if name == "submit" and a[0].symbol == refused.symbol) == 1
    world.day(date(2024, 1, 12))
    assert {o.symbol for o in orders(world)} >= {refused.symbol}
    world.check_agreement()


def test_shares_held_for_another_order_are_waited_for_with_a_capped_retry(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.day(DAY)

    def held(true: Any, request: OrderRequest) -> Any:
        return Rejected(Reason.HELD_FOR_ORDERS, "held_for_orders") if request.side is Side.SELL else true(request)

    world.broker.instead["submit"] = held
    world.day(date(2024, 1, 10))
    tries = [a[0].client_order_id for name, a in world.broker.calls if name == "submit" and a[0].side is Side.SELL]
    assert len(tries) == len(set(tries)) == 3
    world.check_agreement()


def test_a_wash_trade_against_a_foreign_order_is_given_up_and_that_order_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.account._shares["AA"] = Decimal(50)
    world.run_to(datetime(2024, 1, 9, 13, tzinfo=UTC))
    world.account.submit(OrderRequest("by-hand", "AA", Side.SELL, Decimal(5), TimeInForce.CLS))
    world.day(DAY, hour=15)
    ours = [i for i in world.intents() if i.symbol == "AA"]
    assert [world.state_of(i) for i in ours] == ["rejected"]
    assert world.account.order_by_client_id("by-hand").status is OrderStatus.FILLED  # type: ignore[union-attr]
    assert not any(name == "cancel" for name, _ in world.broker.calls)


def test_a_limit_of_requests_is_waited_for_and_the_same_order_sent_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    until = []

    def limited(true: Any, request: Any) -> Any:
        until.append(world.clock.now() + timedelta(seconds=40))
        return Rejected(Reason.RATE_LIMITED, "rate limit exceeded", retry_at=until[0])

    world.broker.instead["submit"] = first(1, limited)
    world.day(DAY)
    taken = min(o.submitted_at for o in orders(world))
    assert taken >= until[0]
    world.check_agreement()


def test_refused_keys_end_the_daemon_with_an_alert(tmp_path: Path) -> None:
    world = World(tmp_path)

    def refuse(true: Any, request: Any) -> Any:
        raise AuthenticationError("the keys were refused (401)")

    world.broker.instead["submit"] = refuse
    with pytest.raises(AuthenticationError):
        world.day(DAY)
    assert "keys" in world.kinds()
    assert not orders(world)


def test_a_cancel_that_races_a_fill_books_the_fill(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    assert world.daemon._p.book.live_orders()

    def late(true: Any, order_id: str) -> Any:
        world.clock.sleep(1800)  # the auction is held meanwhile
        return true(order_id)

    world.broker.instead["cancel"] = first(1, late)
    number = ask(world.store, CommandName.HALT, world.clock.now())
    world.day(DAY, hour=16)
    assert answered(world.store, number).words == "halted, no own order is live"
    assert all(o.status is OrderStatus.FILLED for o in orders(world))
    world.check_agreement()


@pytest.mark.parametrize("more", [-1, 0, 5])
def test_an_order_that_somebody_replaced_stays_with_its_intent(tmp_path: Path, more: int) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    old = orders(world)[0]
    limit = old.limit_price * (2 if old.side is Side.BUY else Decimal("0.5"))
    request = OrderRequest("fp1.by-hand", old.symbol, old.side, old.quantity + more, old.time_in_force, old.type, limit)
    replaced = world.account.replace(old.id, request)
    assert isinstance(replaced, Confirmed)
    world.day(DAY)
    row = next(r for r in world.store.rows(schema.orders) if r.client_order_id == "fp1.by-hand")
    assert (row.replaces, row.attempt) == (old.client_order_id, 1)
    after = world.account.order_by_client_id("fp1.by-hand")
    assert after is not None
    if more > 0:  # more than was wanted: it is taken back
        assert after.status is OrderStatus.CANCELED
    else:
        assert (after.status, after.filled_quantity) == (OrderStatus.FILLED, old.quantity + more)
    assert not world.daemon._p.book.foreign()
    assert "replaced" in world.kinds()
    world.check_agreement()
    world.restart()
    world.day(date(2024, 1, 10))
    assert "mismatch" not in world.kinds()
    world.check_agreement()


def test_a_purchase_against_our_own_sale_cancels_it_first(tmp_path: Path) -> None:
    loose = RiskSettings(max_position=1.5, max_gross=1.5, max_net=1.5, max_order=1.0, daily_loss=0.9, drawdown=0.9)
    world = World(tmp_path, config(risk=loose))
    world.day(DAY)
    world.run_to(datetime(2024, 1, 10, 14, 10, tzinfo=UTC))
    sale = next(o for o in orders(world) if o.live and o.side is Side.SELL)
    refused: list[str] = []

    def wash(true: Any, request: OrderRequest) -> Any:
        standing = world.account.order(sale.id)
        if request.side is Side.BUY and standing is not None and standing.live:
            refused.append(request.client_order_id)
            return Rejected(Reason.WASH_TRADE, "potential wash trade detected")
        return true(request)

    world.broker.instead["submit"] = wash
    desk, now = world.daemon._p.desk, world.clock.now()
    wish = Intent(
        "test", "by-hand", sale.symbol, Side.BUY, Decimal(1), TimeInForce.OPG, OrderType.MARKET, None, Decimal(50), now,
        now + timedelta(minutes=10), now + timedelta(hours=1),
    )  # fmt: skip
    with world.store.write() as connection:
        planned = desk.book.plan(connection, now, [wish])
    desk.book.adopt(planned)
    world.day(date(2024, 1, 10))
    assert len(refused) == 1
    assert world.account.order(sale.id).status is OrderStatus.CANCELED  # type: ignore[union-attr]
    # Taken on the second try; the cash that the sale would have brought is what it lacks.
    assert [o.client_order_id[-2:] for o in orders(world) if "byhand" in o.client_order_id] == ["b1"]
    world.check_agreement()


def test_a_cancel_that_nobody_answered_does_not_count_as_asked(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    desk = world.daemon._p.desk
    _, order = desk.book.live_orders()[0]
    world.broker.instead["cancel"] = first(1, lambda true, order_id: Ambiguous("504"))
    desk.cancel(order)
    assert not order.view.cancel_requested
    desk.cancel(order)
    assert order.view.cancel_requested
    desk.refresh()
    assert order.view.status is OrderStatus.CANCELED
    world.check_agreement()
