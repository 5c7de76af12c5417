"""Broker faults around order submission and cancellation: the daemon loop on a simulated market."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.errors import AuthenticationError, BrokerUnavailable
from finrl_pod.paper.domain.intents import Intent
from finrl_pod.paper.domain.records import (
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
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, RiskState, enqueue, read_result
from finrl_pod.paper.settings import RiskSettings
from tests.paper.factories import SimulatedDaemon, config, for_first_calls, own_orders

pytestmark = pytest.mark.slow

DAY = date(2024, 1, 9)  # the first orders fill here


def test_timed_out_order_is_looked_up_and_resent_under_the_same_id(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["submit"] = for_first_calls(1, lambda original, request: Ambiguous("timeout"))
    sim.day(DAY)
    lookups = [a[0] for name, a in sim.broker.calls if name == "order_by_client_id"]
    assert len(lookups) >= 2  # a single "not found" is not conclusive
    posts = [a[0].client_order_id for name, a in sim.broker.calls if name == "submit"]
    assert posts.count(lookups[0]) == 2
    assert len(own_orders(sim)) == len(set(posts))
    sim.assert_journal_matches_broker()


def test_lost_response_after_acceptance_leads_to_one_order(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def accept_without_response(original: Any, request: Any) -> Any:
        original(request)
        return Ambiguous("504 after acceptance")

    sim.broker.overrides["submit"] = accept_without_response
    sim.day(DAY)
    assert sim.broker.called("submit") == len(own_orders(sim))
    assert all(o.status is OrderStatus.FILLED for o in own_orders(sim))
    sim.assert_journal_matches_broker()


def test_order_that_appears_late_is_adopted(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["submit"] = for_first_calls(
        1, lambda original, request: (original(request), Ambiguous("504"))[1]
    )
    sim.broker.overrides["order_by_client_id"] = for_first_calls(2, lambda original, name: None)
    sim.day(DAY)
    assert sim.broker.called("submit") == len(own_orders(sim))
    sim.assert_journal_matches_broker()


def test_order_stays_unknown_and_is_not_resent_while_lookups_fail(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sent: list[str] = []

    def time_out(original: Any, request: Any) -> Any:
        sent.append(request.client_order_id)
        return Ambiguous("timeout")

    def down(original: Any, *arguments: Any) -> Any:
        raise BrokerUnavailable("no response")

    sim.broker.overrides["submit"] = time_out
    sim.broker.overrides["order_by_client_id"] = down
    sim.day(DAY)
    assert len(sent) == len(set(sent)) == 2
    assert not own_orders(sim)


def add_outage(sim: SimulatedDaemon, minutes: float) -> None:
    """Make the broker unresponsive for `minutes` from the first order on; orders sent meanwhile are lost."""
    until: list[datetime] = []

    def time_out(original: Any, request: Any) -> Any:
        until.append(sim.clock.now() + timedelta(minutes=minutes))
        return original(request) if sim.clock.now() >= until[0] else Ambiguous("timeout")

    def down(original: Any, *arguments: Any) -> Any:
        if sim.clock.now() < until[0]:
            raise BrokerUnavailable("no response")
        return original(*arguments)

    sim.broker.overrides |= {"submit": time_out, "order_by_client_id": down}


def test_order_of_unknown_outcome_is_resent_after_the_outage(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    add_outage(sim, 2)
    sim.day(DAY)
    assert len(own_orders(sim)) == 2
    assert all(o.status is OrderStatus.FILLED for o in own_orders(sim))
    assert not sim.daemon._c.ledger.open
    names = {message.split()[3] for _, kind, message in sim.alerts if kind == "doubt"}
    assert names
    assert len([1 for _, kind, _ in sim.alerts if kind == "doubt"]) == len(names)  # one alert per order
    sim.assert_journal_matches_broker()


def test_order_of_unknown_outcome_expires_at_its_deadline(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    add_outage(sim, 40)
    sim.day(DAY, hour=16)
    assert not sim.daemon._c.ledger.open
    assert {sim.intent_state(i) for i in sim.intents()} == {"expired"}
    assert "lost" in sim.alert_kinds()
    assert not own_orders(sim)
    lookups = sim.broker.called("order_by_client_id")
    sim.day(DAY)
    assert sim.broker.called("order_by_client_id") == lookups
    sim.assert_journal_matches_broker()


def test_unanswered_lookup_does_not_block_other_orders(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    add_outage(sim, 2)
    after_outage = sim.broker.overrides["order_by_client_id"]

    def fail_for_first_order(original: Any, name: str) -> Any:
        if name == names[0]:
            raise BrokerUnavailable("no response")
        return after_outage(original, name)

    names = ["?"]
    submit = sim.broker.overrides["submit"]

    def record_first(original: Any, request: OrderRequest) -> Any:
        names[0] = request.client_order_id if names[0] == "?" else names[0]
        return submit(original, request)

    sim.broker.overrides |= {"submit": record_first, "order_by_client_id": fail_for_first_order}
    sim.day(DAY)
    assert [o.status for o in own_orders(sim)] == [OrderStatus.FILLED]
    assert own_orders(sim)[0].client_order_id != names[0]


def test_duplicate_client_id_of_the_same_order_counts_as_accepted(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["submit"] = for_first_calls(
        1, lambda original, request: (original(request), original(request))[1]
    )
    sim.day(DAY)
    assert sim.daemon._c.risk.state is RiskState.ACTIVE
    sim.assert_journal_matches_broker()


def test_duplicate_client_id_of_another_order_halts(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def take_client_id(original: Any, request: OrderRequest) -> Any:
        original(OrderRequest(request.client_order_id, request.symbol, request.side, Decimal(1), request.time_in_force))
        return original(request)

    sim.broker.overrides["submit"] = for_first_calls(1, take_client_id)
    sim.day(DAY)
    assert sim.daemon._c.risk.state is RiskState.HALTED
    assert "halted" in sim.alert_kinds()
    assert len(own_orders(sim)) == 1


@pytest.mark.parametrize("reason", [Reason.INVALID, Reason.BUYING_POWER, Reason.NOT_TRADABLE, Reason.OTHER])
def test_rejection_ends_the_intent_and_the_next_decision_trades(tmp_path: Path, reason: Reason) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["submit"] = for_first_calls(
        1, lambda original, request: Rejected(reason, "pattern day trading")
    )
    sim.day(DAY)
    refused = next(i for i in sim.intents() if sim.intent_state(i) == "rejected")
    assert any("pattern day trading" in message for _, _, message in sim.alerts)
    assert sum(1 for name, a in sim.broker.calls if name == "submit" and a[0].symbol == refused.symbol) == 1
    sim.day(date(2024, 1, 12))
    assert {o.symbol for o in own_orders(sim)} >= {refused.symbol}
    sim.assert_journal_matches_broker()


def test_sale_of_shares_held_for_another_order_is_retried_up_to_a_cap(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(DAY)

    def held(original: Any, request: OrderRequest) -> Any:
        return Rejected(Reason.HELD_FOR_ORDERS, "held_for_orders") if request.side is Side.SELL else original(request)

    sim.broker.overrides["submit"] = held
    sim.day(date(2024, 1, 10))
    attempts = [a[0].client_order_id for name, a in sim.broker.calls if name == "submit" and a[0].side is Side.SELL]
    assert len(attempts) == len(set(attempts)) == 3
    sim.assert_journal_matches_broker()


def test_wash_trade_against_an_external_order_is_abandoned(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.account._shares["AA"] = Decimal(50)
    sim.run_to(datetime(2024, 1, 9, 13, tzinfo=UTC))
    sim.account.submit(OrderRequest("external", "AA", Side.SELL, Decimal(5), TimeInForce.CLS))
    sim.day(DAY)
    own = [i for i in sim.intents() if i.symbol == "AA"]
    assert [sim.intent_state(i) for i in own] == ["rejected"]
    assert sim.account.order_by_client_id("external").status is OrderStatus.FILLED  # type: ignore[union-attr]
    assert not any(name == "cancel" for name, _ in sim.broker.calls)


def test_rate_limited_order_is_sent_once_after_the_wait(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    until = []

    def limited(original: Any, request: Any) -> Any:
        until.append(sim.clock.now() + timedelta(seconds=40))
        return Rejected(Reason.RATE_LIMITED, "rate limit exceeded", retry_at=until[0])

    sim.broker.overrides["submit"] = for_first_calls(1, limited)
    sim.day(DAY)
    accepted = min(o.submitted_at for o in own_orders(sim))
    assert accepted >= until[0]
    sim.assert_journal_matches_broker()


def test_refused_keys_stop_the_daemon_with_an_alert(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def refuse(original: Any, request: Any) -> Any:
        raise AuthenticationError("the keys were refused (401)")

    sim.broker.overrides["submit"] = refuse
    with pytest.raises(AuthenticationError):
        sim.day(DAY)
    assert "keys" in sim.alert_kinds()
    assert not own_orders(sim)
    assert {row.state for row in sim.store.rows(schema.order_events)} <= {
        "sending",
        "unknown",
    }  # looked up at a restart


def test_fill_during_a_cancel_is_booked(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    assert sim.daemon._c.ledger.live_orders()

    def late(original: Any, order_id: str) -> Any:
        sim.clock.sleep(1800)  # the auction runs meanwhile
        return original(order_id)

    sim.broker.overrides["cancel"] = for_first_calls(1, late)
    number = enqueue(sim.store, CommandName.HALT, sim.clock.now())
    sim.day(DAY, hour=16)
    assert read_result(sim.store, number).message == "halted, no own order is live"
    assert all(o.status is OrderStatus.FILLED for o in own_orders(sim))
    sim.assert_journal_matches_broker()


@pytest.mark.parametrize("more", [-1, 0, 5])
def test_externally_replaced_order_stays_linked_to_its_intent(tmp_path: Path, more: int) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    old = own_orders(sim)[0]
    limit = old.limit_price * (2 if old.side is Side.BUY else Decimal("0.5"))
    request = OrderRequest(
        "fp1.external", old.symbol, old.side, old.quantity + more, old.time_in_force, old.type, limit
    )
    outcome = sim.account.submit(request)
    assert isinstance(outcome, Confirmed)
    assert outcome.order is not None
    new = dataclasses.replace(outcome.order, replaces=old.id)
    sim.account._orders[new.id] = new
    sim.account._close_order(dataclasses.replace(old, replaced_by=new.id), OrderStatus.REPLACED, new.updated_at)
    sim.day(DAY)
    row = next(r for r in sim.store.rows(schema.orders) if r.client_order_id == "fp1.external")
    assert (row.replaces, row.attempt) == (old.client_order_id, 1)
    after = sim.account.order_by_client_id("fp1.external")
    assert after is not None
    if more > 0:  # larger than the intent: it is cancelled
        assert after.status is OrderStatus.CANCELED
    else:
        assert (after.status, after.filled_quantity) == (OrderStatus.FILLED, old.quantity + more)
    assert not sim.daemon._c.ledger.external_positions()
    assert "replaced" in sim.alert_kinds()
    sim.assert_journal_matches_broker()
    sim.restart()
    sim.day(date(2024, 1, 10))
    assert "mismatch" not in sim.alert_kinds()
    sim.assert_journal_matches_broker()


def test_buy_order_cancels_an_own_opposite_sell_order_first(tmp_path: Path) -> None:
    loose = RiskSettings(max_position=1.5, max_gross=1.5, max_net=1.5, max_order=1.0, daily_loss=0.9, drawdown=0.9)
    sim = SimulatedDaemon(tmp_path, config(risk=loose))
    sim.day(DAY)
    sim.run_to(datetime(2024, 1, 10, 14, 10, tzinfo=UTC))
    sale = next(o for o in own_orders(sim) if o.live and o.side is Side.SELL)
    refused: list[str] = []

    def wash(original: Any, request: OrderRequest) -> Any:
        existing = sim.account.order(sale.id)
        if request.side is Side.BUY and existing is not None and existing.live:
            refused.append(request.client_order_id)
            return Rejected(Reason.WASH_TRADE, "potential wash trade detected")
        return original(request)

    sim.broker.overrides["submit"] = wash
    manager, now = sim.daemon._c.orders, sim.clock.now()
    request = Intent(
        "test", "external", sale.symbol, Side.BUY, Decimal(1), TimeInForce.OPG, OrderType.MARKET, None, Decimal(50),
        now, now + timedelta(minutes=10), now + timedelta(hours=1),
    )  # fmt: skip
    with sim.store.write() as connection:
        planned = manager.ledger.add_intents(connection, now, [request])
    manager.ledger.track(planned)
    sim.day(date(2024, 1, 10))
    assert len(refused) == 1
    assert sim.account.order(sale.id).status is OrderStatus.CANCELED  # type: ignore[union-attr]
    # The second attempt is accepted, although the proceeds of the sale are missing.
    assert [o.client_order_id[-2:] for o in own_orders(sim) if "external" in o.client_order_id] == ["b1"]
    sim.assert_journal_matches_broker()


def test_cancel_without_a_response_is_repeated(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    manager = sim.daemon._c.orders
    _, order = manager.ledger.live_orders()[0]
    sim.broker.overrides["cancel"] = for_first_calls(1, lambda original, order_id: Ambiguous("504"))
    manager.cancel(order)
    assert not order.cancel_requested
    manager.cancel(order)
    assert order.cancel_requested
    manager.refresh()
    assert order.status is OrderStatus.CANCELED
    sim.assert_journal_matches_broker()
