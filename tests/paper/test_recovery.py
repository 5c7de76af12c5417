"""A daemon that dies at any write is started again and leaves the account as if it had lived."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from finrl_pod.paper.execution.risk import RiskState
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, answered, ask
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.records import OrderRequest, Side, TimeInForce
from finrl_pod.paper.settings import OrderSettings, TimingSettings
from tests.paper.made import SYMBOLS, Sparing, Swapping, World, config

LAST = date(2024, 1, 11)


class Died(BaseException):
    """Stands for SIGKILL: nothing catches it."""


class Deaths:
    """Kills at write number `at`, before or after it is on disk. Counts the writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.before = 0, -1, True
        write = Store.write

        @contextlib.contextmanager
        def deadly(store: Store) -> Iterator[Connection]:
            self.count += 1
            fatal = self.count == self.at
            with write(store) as connection:
                yield connection
                if fatal and self.before:
                    raise Died
            if fatal:
                raise Died

        monkeypatch.setattr(Store, "write", deadly)


def trades(world: World) -> list[tuple[str, str, str, str]]:
    return [(o.client_order_id, str(o.filled_quantity), str(o.filled_average_price), o.status.value)
            for o in world.account.orders("all")]  # fmt: skip


def live_through(world: World, deaths: Deaths | None = None, at: int = -1, *, before: bool = True) -> int:
    """Run to the last day; die once at the given write and start again. Returns how often it died."""
    died = 0
    if deaths is not None:
        deaths.at, deaths.before = at, before
    while True:
        try:
            if died:
                if deaths is not None:
                    deaths.at = -1
                world.restart()
            busy_days(world) if deaths is not None else world.day(LAST)
            return died
        except Died:
            died += 1


def busy_days(world: World) -> None:
    """Purchases that fill in part until the day ends, then sales and purchases whose rest a halt cancels."""
    moment = datetime(2024, 1, 10, 14, 50, tzinfo=UTC)
    world.run_to(moment)
    if not world.store.rows(schema.commands):
        ask(world.store, CommandName.HALT, max(moment, world.clock.now()))
    world.day(date(2024, 1, 10), hour=15)


def busy_world(folder: Path) -> World:
    folder.mkdir()
    orders = OrderSettings(fractional=True, collar=0.2)
    return World(
        folder, config(orders=orders, symbols=SYMBOLS[:2], timing=TimingSettings(poll=300.0)), Swapping(), kind=Sparing
    )


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["before the write", "after the write"])
def test_dying_at_every_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    with monkeypatch.context() as patch:
        counting = Deaths(patch)
        world = busy_world(tmp_path / "undisturbed")
        live_through(world, counting)
        world.check_agreement()
        undisturbed = trades(world)
        world.store.close()
    assert {name.rsplit(".")[-1][0] for name, *_ in undisturbed} == {"b", "s"}
    assert {status for *_, status in undisturbed} == {"expired", "canceled"}
    assert all(float(filled) > 0 for _, filled, *_ in undisturbed)
    assert counting.count > 30
    # The first write makes the file. What follows a write is the broker's turn: every third of those is enough.
    for at in range(2, counting.count + 1, 1 if before else 3):
        with monkeypatch.context() as patch:
            deaths = Deaths(patch)
            world = busy_world(tmp_path / f"{at}")
            assert live_through(world, deaths, at, before=before) == 1
            world.check_agreement()
            assert trades(world) == undisturbed, f"write {at}"
            world.store.close()


@pytest.mark.parametrize("before", [True, False], ids=["before the write", "after the write"])
def test_dying_at_every_write_of_a_flatten_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    at, died = 1, True
    while died:
        folder = tmp_path / f"{at}"
        folder.mkdir()
        world = World(folder)
        world.day(date(2024, 1, 9), hour=15)
        number = ask(world.store, CommandName.FLATTEN, world.clock.now())
        with monkeypatch.context() as patch:
            deaths = Deaths(patch)
            deaths.at, deaths.before = at, before
            try:
                world.daemon.step()
                died = False
            except Died:
                deaths.at = -1
                world.restart()
                world.daemon.step()
        assert answered(world.store, number).words == "2 positions are being sold", f"write {at}"
        assert world.daemon._p.risk.state is RiskState.REDUCING
        sold = [i for i in world.intents() if i.bar.startswith("flatten")]
        assert {i.symbol: Decimal(i.quantity) for i in sold} == {
            symbol: shares for symbol, shares in world.daemon.trader.positions.items() if shares
        }
        world.store.close()
        at += 1
    assert at > 3


def test_dying_after_the_broker_took_the_order_makes_no_second_one(tmp_path: Path) -> None:
    world = World(tmp_path)

    def take_and_die(true: Any, request: Any) -> Any:
        true(request)
        world.broker.instead.clear()
        raise Died

    world.broker.instead["submit"] = take_and_die
    assert live_through(world) == 1
    world.check_agreement()
    names = [o.client_order_id for o in world.account.orders("all")]
    assert len(names) == len(set(names))
    adopted = [row for row in world.store.rows(schema.order_events) if row.source == "lookup"]
    assert adopted


def doomed(folder: Path) -> World:
    """A world whose daemon dies just before it sends its first order."""
    world = World(folder)

    def die(true: Any, request: Any) -> Any:
        world.broker.instead.clear()
        raise Died

    world.broker.instead["submit"] = die
    return world


def left_unsent(folder: Path) -> World:
    """A world whose daemon has died so."""
    world = doomed(folder)
    with pytest.raises(Died):
        world.day(LAST)
    return world


def test_dying_before_the_post_replays_the_intent_once(tmp_path: Path) -> None:
    world = doomed(tmp_path)
    assert live_through(world) == 1
    world.check_agreement()
    assert "sent again under the same id" in {row.detail for row in world.store.rows(schema.order_events)}


def test_dying_before_the_post_and_waking_too_late_expires_the_intent(tmp_path: Path) -> None:
    world = left_unsent(tmp_path)
    first = world.intents()[0]
    world.clock.sleep(3 * 3600)
    world.restart()
    world.day(LAST)
    assert world.state_of(first) == "expired"
    assert not [o for o in world.account.orders("all") if first.bar.replace("-", "") in o.client_order_id]
    world.check_agreement()


def test_an_order_left_unsent_waits_until_the_account_agrees(tmp_path: Path) -> None:
    world = left_unsent(tmp_path)
    world.account._cash += 5_000
    world.restart()
    world.run_to(world.clock.now() + timedelta(minutes=5))
    assert world.broker.called("submit") == 1
    assert "mismatch" in world.kinds()
    ask(world.store, CommandName.ACKNOWLEDGE, world.clock.now())
    world.day(date(2024, 1, 9))
    assert {world.state_of(i) for i in world.intents()} == {"done"}
    world.check_agreement()


def test_an_order_left_unsent_while_the_account_differs_is_given_up_after_its_deadline(tmp_path: Path) -> None:
    world = left_unsent(tmp_path)
    world.account._cash += 5_000
    world.restart()
    world.day(date(2024, 1, 9))
    assert world.broker.called("submit") == 1
    assert {world.state_of(i) for i in world.intents()} == {"expired"}


@pytest.mark.parametrize("state", [RiskState.REDUCING, RiskState.HALTED])
def test_an_order_left_unsent_is_held_against_the_limits_before_it_is_sent(tmp_path: Path, state: RiskState) -> None:
    world = left_unsent(tmp_path)
    world.restart()
    world.daemon._p.risk.set(state, "while it was down", world.clock.now())
    world.day(date(2024, 1, 9))
    assert world.broker.called("submit") == 1
    assert {world.state_of(i) for i in world.intents()} == {"withheld"}


def test_decisions_missed_while_down_are_skipped_and_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.day(date(2024, 1, 9))
    world.clock.sleep(3 * 86_400)
    world.restart()
    world.day(date(2024, 1, 16))
    missed = [row.bar for row in world.store.rows(schema.decisions) if row.outcome == "missed"]
    assert missed == ["2024-01-09", "2024-01-10", "2024-01-11"]
    assert "missed" in world.kinds()
    world.check_agreement()


def test_what_was_there_before_the_first_start_is_foreign_and_never_touched(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.account._shares["BB"] = Decimal(7)
    world.day(LAST)
    assert world.daemon._p.book.foreign() == {"BB": Decimal(7)}
    world.check_agreement()
    assert all(Decimal(i.quantity) != 7 for i in world.intents())


def test_shares_bought_by_somebody_else_become_foreign(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.day(date(2024, 1, 9), hour=12)
    request = OrderRequest("by-hand", "CC", Side.BUY, Decimal(3), TimeInForce.OPG)
    world.account.submit(request)
    world.day(LAST)
    assert world.daemon._p.book.foreign() == {"CC": Decimal(3)}
    assert not world.daemon._p.reconciler.differences
    assert world.account.order_by_client_id("by-hand").status.value == "filled"  # type: ignore[union-attr]


@pytest.mark.parametrize("what", ["shares", "cash"])
def test_a_reset_account_is_not_traded_until_acknowledged(tmp_path: Path, what: str) -> None:
    world = World(tmp_path)
    world.day(date(2024, 1, 9))
    if what == "shares":
        symbol = next(s for s, q in world.account._shares.items() if q)
        world.account._shares[symbol] = Decimal(0)
    else:
        world.account._cash += 5_000
    sent = world.broker.called("submit")
    world.restart()
    world.day(LAST)
    assert world.broker.called("submit") == sent
    assert "mismatch" in world.kinds()
    number = ask(world.store, CommandName.ACKNOWLEDGE, world.clock.now())
    world.day(date(2024, 1, 17))
    assert "1 differences acknowledged" in answered(world.store, number).words
    assert world.broker.called("submit") > sent
    world.check_agreement()


def test_own_shares_that_somebody_sold_stop_the_trading_until_acknowledged(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 31, tzinfo=UTC))
    symbol, shares = next((s, q) for s, q in world.daemon.trader.positions.items() if q)
    world.account.submit(OrderRequest("by-hand", symbol, Side.SELL, shares, TimeInForce.CLS))
    sent, cash = world.broker.called("submit"), world.daemon.trader.cash
    world.day(date(2024, 1, 10))
    world.restart()
    world.day(date(2024, 1, 11))
    assert world.broker.called("submit") == sent
    assert any(f"others have sold {shares} of our {shares} shares" in message for _, _, message in world.told)
    for name in (CommandName.RESUME, CommandName.RECONCILE, CommandName.FLATTEN):
        number = ask(world.store, name, world.clock.now())
        world.daemon.step()
        assert answered(world.store, number).refused, name
    number = ask(world.store, CommandName.ACKNOWLEDGE, world.clock.now())
    world.daemon.step()
    assert not answered(world.store, number).refused
    assert "1 differences acknowledged" in answered(world.store, number).words
    sale = world.account.order_by_client_id("by-hand")
    assert sale is not None
    assert sale.filled_average_price is not None
    assert world.daemon.trader.positions[symbol] == 0
    assert world.daemon.trader.cash == cash + shares * sale.filled_average_price
    assert not world.daemon._p.book.foreign()
    world.check_agreement()
    world.restart()
    assert world.daemon.trader.cash == cash + shares * sale.filled_average_price
    world.day(date(2024, 1, 17))
    assert world.broker.called("submit") > sent
    assert min(p.quantity for p in world.account.positions()) > 0
    world.check_agreement()


def test_shares_that_went_without_a_sale_bring_no_cash(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.day(date(2024, 1, 9))
    symbol, shares = next((s, q) for s, q in world.account._shares.items() if q)
    world.account._shares[symbol] = shares - 5
    cash = world.daemon.trader.cash
    ask(world.store, CommandName.ACKNOWLEDGE, world.clock.now())
    world.daemon.step()
    assert world.daemon.trader.positions[symbol] == shares - 5
    assert world.daemon.trader.cash == cash
    assert not world.daemon._p.book.foreign()


def test_a_sale_of_shares_that_have_gone_since_the_decision_is_kept_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.day(date(2024, 1, 9))
    gone: list[str] = []

    def emptied(true: Any, symbols: Any) -> Any:
        """Asked for between the comparison and the orders: the shares of what will be sold are gone."""
        if not gone:
            gone.extend(s for s, q in world.account._shares.items() if q)
            for symbol in gone:
                world.account._shares[symbol] = Decimal(1)
        return true(symbols)

    world.broker.instead["assets"] = emptied
    world.run_to(datetime(2024, 1, 10, 14, 10, tzinfo=UTC))
    sales = [i for i in world.intents() if i.side == "sell"]
    assert sales
    assert {world.state_of(i) for i in sales} == {"withheld"}
    assert any("the account holds 1 shares" in message for _, kind, message in world.told if kind == "risk")
