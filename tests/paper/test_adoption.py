"""A lost journal is rebuilt from the broker: the books equal those of the lost one, and trading goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.paper.domain.intents import client_order_id, parse_order_id
from finrl_pod.paper.domain.records import ActionKind, CorporateAction, OrderRequest, Side, TimeInForce
from finrl_pod.paper.execution.adoption import Adoption, adopt
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, enqueue
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.journal.row_check import check_rows
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import orders
from finrl_pod.paper.settings import OrderSettings, PaperConfig, ScheduleSettings, StrategyConfig, TimingSettings
from tests.paper.factories import (
    PartialFillBroker,
    RotatingStrategy,
    SimulatedDaemon,
    config,
    own_orders,
)

SPLIT = CorporateAction("split", ActionKind.SPLIT, "AA", date(2024, 1, 11), new=Decimal(3))
DIVIDEND = CorporateAction("dividend", ActionKind.CASH_DIVIDEND, "BB", date(2024, 1, 12), cash=Decimal("0.4"))
PARTS = (StrategyConfig("one", "x", share=0.5), StrategyConfig("two", "x", share=0.4))


def books(store: Store) -> dict[str, Any]:
    """What the journal says about own shares, cash, orders and fills."""
    ledger = Ledger(store)
    names = {row.id: row.client_order_id for row in store.rows(schema.orders)}
    return {
        "positions": {symbol: shares for symbol, shares in ledger.positions.items() if shares},
        "cash": ledger.cash,
        "books": {run: (dict(b.positions), b.cash) for run, b in ledger.books.items() if any(b.positions.values())},
        "external": ledger.external_positions(),
        "orders": sorted(
            (order.client_order_id, order.symbol, order.side, order.quantity, order.filled, order.run, order.bar)
            for order in orders(store)
        ),
        "fills": sorted(
            (names[row.order_id], row.quantity, row.cumulative_quantity, row.price)
            for row in store.rows(schema.fills)
        ),
    }  # fmt: skip


def rebuilt(sim: SimulatedDaemon) -> Adoption:
    """Delete the journal, and rebuild it in its place."""
    sim.store.close()
    for file in sim.journal.parent.glob(f"{sim.journal.name}*"):
        file.unlink()
    sim.store = Store.create_or_open(sim.journal)
    found = adopt(sim.store, sim.config, sim.broker, sim.clock.now())  # type: ignore[arg-type]
    check_rows(sim.store)
    return found


def corporate_actions_of(sim: SimulatedDaemon) -> Callable[..., tuple[CorporateAction, ...]]:
    """A split and a dividend, which the account gets when they are first asked for."""
    waiting = [SPLIT, DIVIDEND]

    def answer(_: object, symbols: Sequence[str], start: date, end: date) -> tuple[CorporateAction, ...]:
        found = tuple(a for a in (SPLIT, DIVIDEND) if a.symbol in symbols and start <= a.ex_date <= end)
        for action in [action for action in waiting if action in found]:
            waiting.remove(action)
            if action is SPLIT:
                sim.account._shares["AA"] *= 3
            else:
                sim.account._cash += sim.account._shares["BB"] * action.cash
        return found

    return answer


def settings(mode: str) -> PaperConfig:
    """Purchases that wait for sales are DAY orders, which the broker fills in part."""
    rules = OrderSettings(fractional=True, collar=0.2, funding="after_sales")
    return config(orders=rules, schedule=ScheduleSettings(mode), timing=TimingSettings(poll=900.0))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_books_of_a_journal_lost_at_a_random_moment_are_rebuilt(tmp_path: Path, part: int) -> None:
    """Over a split, a dividend, partial fills, a halt, and orders that are still open; then trading goes on."""
    draw = random.Random(part)
    first, last = datetime(2024, 1, 9, 12, tzinfo=UTC), datetime(2024, 1, 17, 21, tzinfo=UTC)
    moments = sorted(first + draw.random() * (last - first) for _ in range(5))
    sim = SimulatedDaemon(tmp_path, settings("open"), kind=PartialFillBroker, max_sleep=7200.0)
    sim.account._shares["CC"] = Decimal(4)  # before the first start
    sim.broker.overrides["corporate_actions"] = corporate_actions_of(sim)
    for place, moment in enumerate(moments):
        sim.run_to(moment)
        sim.daemon._c.orders.refresh()  # the broker may have filled orders while the daemon waited
        before = books(sim.store)
        found = rebuilt(sim)
        after = books(sim.store)
        assert after == before, moment
        assert found.positions == before["positions"]
        assert found.cash == Decimal(100_000) + before["cash"]
        sim.alerts.clear()
        sim.restart()
        sim.daemon.step()
        assert not [alert for alert in sim.alerts if alert[0] == "critical"]
        assert not sim.daemon._c.reconciler.differences
        if place == 2:
            enqueue(sim.store, CommandName.HALT, sim.clock.now())
            sim.daemon.step()
            enqueue(sim.store, CommandName.RESUME, sim.clock.now())
    count = len(own_orders(sim))
    sim.run_to(last + timedelta(days=2))
    assert len(own_orders(sim)) > count
    assert not [alert for alert in sim.alerts if alert[0] == "critical"]
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_books_of_several_strategies_are_rebuilt(tmp_path: Path) -> None:
    several = config(strategy="", strategies=PARTS)
    sim = SimulatedDaemon(tmp_path, several, strategies=[RotatingStrategy(), RotatingStrategy()])
    sim.day(date(2024, 1, 12))
    before = books(sim.store)
    assert len(before["books"]) == 2
    rebuilt(sim)
    assert books(sim.store) == before
    sim.restart()
    sim.day(date(2024, 1, 17))
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_bar_that_was_decided_is_not_decided_again(tmp_path: Path) -> None:
    """The journal is lost between the orders of a decision and the auction."""
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 10, 14, 12, tzinfo=UTC))
    live = [order.client_order_id for order in own_orders(sim) if order.live]
    assert len(live) > 1
    rebuilt(sim)
    sim.restart()
    sim.run_to(datetime(2024, 1, 10, 14, 25, tzinfo=UTC))
    assert [order.client_order_id for order in own_orders(sim) if order.live] == live
    sim.day(date(2024, 1, 10))
    sim.assert_journal_matches_broker()
    assert not sim.daemon._c.ledger.open


@pytest.mark.slow
def test_sessions_are_those_of_the_brokers_calendar(tmp_path: Path) -> None:
    """The exchange closes on a day that the library does not know: there is no close of it, and no decision on it."""
    closed = date(2024, 1, 10)
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["calendar"] = lambda original, *range_: tuple(s for s in original(*range_) if s.date != closed)
    sim.day(date(2024, 1, 9))
    sim.run_to(datetime(2024, 1, 10, 22, tzinfo=UTC))
    rebuilt(sim)
    assert {row.session for row in sim.store.rows(schema.closes)} == {"2024-01-09"}
    actions = [call[1:] for name, call in sim.broker.calls if name == "corporate_actions"]
    assert actions[-1][-1] == date(2024, 1, 9)


@pytest.mark.slow
def test_orders_of_others_are_not_adopted(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9))
    other = client_order_id("other", "2024-01-09", "BB", Side.BUY, 0)
    for name in ("by hand", other):
        sim.account.submit(OrderRequest(name, "BB", Side.BUY, Decimal(5), TimeInForce.DAY))
    sim.day(date(2024, 1, 11))
    own = {symbol: shares for symbol, shares in sim.daemon.trader.positions.items() if shares}
    found = rebuilt(sim)
    assert found.positions == own
    assert found.external == {"BB": Decimal(10)}


@pytest.mark.parametrize("bar", ["2024-01-09", "2024-01-09T15:30", "flatten-7", "flatten-12", "flatten-2024-01-09"])
def test_bars_are_read_from_order_ids(bar: str) -> None:
    for run in ("short", "test/a strategy with a long name"):
        order_id = client_order_id(run, bar, "BRK.B", Side.SELL, 12)
        assert parse_order_id(order_id, ["x", run], date(2024, 1, 9)) == (run, bar)
    assert parse_order_id(order_id, ["x"], date(2024, 1, 9)) is None
    assert parse_order_id("by hand", ["x"], date(2024, 1, 9)) is None
