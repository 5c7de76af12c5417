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
from finrl_pod.paper.journal.commands import CommandName, enqueue, read_result
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.records import OrderRequest, Side, TimeInForce
from finrl_pod.paper.settings import OrderSettings, TimingSettings
from tests.paper.factories import SYMBOLS, PartialFillBroker, SimulatedDaemon, SwappingStrategy, config

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


def trades(sim: SimulatedDaemon) -> list[tuple[str, str, str, str]]:
    return [(o.client_order_id, str(o.filled_quantity), str(o.filled_average_price), o.status.value)
            for o in sim.account.orders("all")]  # fmt: skip


def live_through(sim: SimulatedDaemon, deaths: Deaths | None = None, at: int = -1, *, before: bool = True) -> int:
    """Run to the last day; die once at the given write and start again. Returns how often it died."""
    died = 0
    if deaths is not None:
        deaths.at, deaths.before = at, before
    while True:
        try:
            if died:
                if deaths is not None:
                    deaths.at = -1
                sim.restart()
            busy_days(sim) if deaths is not None else sim.day(LAST)
            return died
        except Died:
            died += 1


def busy_days(sim: SimulatedDaemon) -> None:
    """Purchases that fill in part until the day ends, then sales and purchases whose rest a halt cancels."""
    moment = datetime(2024, 1, 10, 14, 50, tzinfo=UTC)
    sim.run_to(moment)
    if not sim.store.rows(schema.commands):
        enqueue(sim.store, CommandName.HALT, max(moment, sim.clock.now()))
    sim.day(date(2024, 1, 10), hour=15)


def busy_world(folder: Path) -> SimulatedDaemon:
    folder.mkdir()
    orders = OrderSettings(fractional=True, collar=0.2)
    return SimulatedDaemon(
        folder,
        config(orders=orders, symbols=SYMBOLS[:2], timing=TimingSettings(poll=300.0)),
        SwappingStrategy(),
        kind=PartialFillBroker,
    )


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["before the write", "after the write"])
def test_dying_at_every_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    with monkeypatch.context() as patch:
        counting = Deaths(patch)
        sim = busy_world(tmp_path / "undisturbed")
        live_through(sim, counting)
        sim.check_agreement()
        undisturbed = trades(sim)
        sim.store.close()
    assert {name.rsplit(".")[-1][0] for name, *_ in undisturbed} == {"b", "s"}
    assert {status for *_, status in undisturbed} == {"expired", "canceled"}
    assert all(float(filled) > 0 for _, filled, *_ in undisturbed)
    assert counting.count > 30
    # The first write makes the file. What follows a write is the broker's turn: every third of those is enough.
    for at in range(2, counting.count + 1, 1 if before else 3):
        with monkeypatch.context() as patch:
            deaths = Deaths(patch)
            sim = busy_world(tmp_path / f"{at}")
            assert live_through(sim, deaths, at, before=before) == 1
            sim.check_agreement()
            assert trades(sim) == undisturbed, f"write {at}"
            sim.store.close()


@pytest.mark.parametrize("before", [True, False], ids=["before the write", "after the write"])
def test_dying_at_every_write_of_a_flatten_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    at, died = 1, True
    while died:
        folder = tmp_path / f"{at}"
        folder.mkdir()
        sim = SimulatedDaemon(folder)
        sim.day(date(2024, 1, 9), hour=15)
        number = enqueue(sim.store, CommandName.FLATTEN, sim.clock.now())
        with monkeypatch.context() as patch:
            deaths = Deaths(patch)
            deaths.at, deaths.before = at, before
            try:
                sim.daemon.step()
                died = False
            except Died:
                deaths.at = -1
                sim.restart()
                sim.daemon.step()
        assert read_result(sim.store, number).message == "2 positions are being sold", f"write {at}"
        assert sim.daemon._c.risk.state is RiskState.REDUCING
        sold = [i for i in sim.intents() if i.bar.startswith("flatten")]
        assert {i.symbol: Decimal(i.quantity) for i in sold} == {
            symbol: shares for symbol, shares in sim.daemon.trader.positions.items() if shares
        }
        sim.store.close()
        at += 1
    assert at > 3


def test_dying_after_the_broker_took_the_order_makes_no_second_one(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def take_and_die(true: Any, request: Any) -> Any:
        true(request)
        sim.broker.overrides.clear()
        raise Died

    sim.broker.overrides["submit"] = take_and_die
    assert live_through(sim) == 1
    sim.check_agreement()
    names = [o.client_order_id for o in sim.account.orders("all")]
    assert len(names) == len(set(names))
    adopted = [row for row in sim.store.rows(schema.order_events) if row.source == "lookup"]
    assert adopted


def doomed(folder: Path) -> SimulatedDaemon:
    """A sim whose daemon dies just before it sends its first order."""
    sim = SimulatedDaemon(folder)

    def die(true: Any, request: Any) -> Any:
        sim.broker.overrides.clear()
        raise Died

    sim.broker.overrides["submit"] = die
    return sim


def left_unsent(folder: Path) -> SimulatedDaemon:
    """A sim whose daemon has died so."""
    sim = doomed(folder)
    with pytest.raises(Died):
        sim.day(LAST)
    return sim


def test_dying_before_the_post_replays_the_intent_once(tmp_path: Path) -> None:
    sim = doomed(tmp_path)
    assert live_through(sim) == 1
    sim.check_agreement()
    assert "sent again under the same id" in {row.detail for row in sim.store.rows(schema.order_events)}


def test_dying_before_the_post_and_waking_too_late_expires_the_intent(tmp_path: Path) -> None:
    sim = left_unsent(tmp_path)
    first = sim.intents()[0]
    sim.clock.sleep(3 * 3600)
    sim.restart()
    sim.day(LAST)
    assert sim.state_of(first) == "expired"
    assert not [o for o in sim.account.orders("all") if first.bar.replace("-", "") in o.client_order_id]
    sim.check_agreement()


def test_an_order_left_unsent_waits_until_the_account_agrees(tmp_path: Path) -> None:
    sim = left_unsent(tmp_path)
    sim.account._cash += 5_000
    sim.restart()
    sim.run_to(sim.clock.now() + timedelta(minutes=5))
    assert sim.broker.called("submit") == 1
    assert "mismatch" in sim.alert_kinds()
    enqueue(sim.store, CommandName.ACKNOWLEDGE, sim.clock.now())
    sim.day(date(2024, 1, 9))
    assert {sim.state_of(i) for i in sim.intents()} == {"done"}
    sim.check_agreement()


def test_an_order_left_unsent_while_the_account_differs_is_given_up_after_its_deadline(tmp_path: Path) -> None:
    sim = left_unsent(tmp_path)
    sim.account._cash += 5_000
    sim.restart()
    sim.day(date(2024, 1, 9))
    assert sim.broker.called("submit") == 1
    assert {sim.state_of(i) for i in sim.intents()} == {"expired"}


@pytest.mark.parametrize("state", [RiskState.REDUCING, RiskState.HALTED])
def test_an_order_left_unsent_is_held_against_the_limits_before_it_is_sent(tmp_path: Path, state: RiskState) -> None:
    sim = left_unsent(tmp_path)
    sim.restart()
    sim.daemon._c.risk.set(state, "while it was down", sim.clock.now())
    sim.day(date(2024, 1, 9))
    assert sim.broker.called("submit") == 1
    assert {sim.state_of(i) for i in sim.intents()} == {"withheld"}


def test_decisions_missed_while_down_are_skipped_and_told(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9))
    sim.clock.sleep(3 * 86_400)
    sim.restart()
    sim.day(date(2024, 1, 16))
    missed = [row.bar for row in sim.store.rows(schema.decisions) if row.outcome == "missed"]
    assert missed == ["2024-01-09", "2024-01-10", "2024-01-11"]
    assert "missed" in sim.alert_kinds()
    sim.check_agreement()


def test_what_was_there_before_the_first_start_is_foreign_and_never_touched(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.account._shares["BB"] = Decimal(7)
    sim.day(LAST)
    assert sim.daemon._c.ledger.external_positions() == {"BB": Decimal(7)}
    sim.check_agreement()
    assert all(Decimal(i.quantity) != 7 for i in sim.intents())


def test_shares_bought_by_somebody_else_become_foreign(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9), hour=12)
    request = OrderRequest("by-hand", "CC", Side.BUY, Decimal(3), TimeInForce.OPG)
    sim.account.submit(request)
    sim.day(LAST)
    assert sim.daemon._c.ledger.external_positions() == {"CC": Decimal(3)}
    assert not sim.daemon._c.reconciler.differences
    assert sim.account.order_by_client_id("by-hand").status.value == "filled"  # type: ignore[union-attr]


@pytest.mark.parametrize("what", ["shares", "cash"])
def test_a_reset_account_is_not_traded_until_acknowledged(tmp_path: Path, what: str) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9))
    if what == "shares":
        symbol = next(s for s, q in sim.account._shares.items() if q)
        sim.account._shares[symbol] = Decimal(0)
    else:
        sim.account._cash += 5_000
    sent = sim.broker.called("submit")
    sim.restart()
    sim.day(LAST)
    assert sim.broker.called("submit") == sent
    assert "mismatch" in sim.alert_kinds()
    number = enqueue(sim.store, CommandName.ACKNOWLEDGE, sim.clock.now())
    sim.day(date(2024, 1, 17))
    assert "1 differences acknowledged" in read_result(sim.store, number).message
    assert sim.broker.called("submit") > sent
    sim.check_agreement()


def test_own_shares_that_somebody_sold_stop_the_trading_until_acknowledged(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 31, tzinfo=UTC))
    symbol, shares = next((s, q) for s, q in sim.daemon.trader.positions.items() if q)
    sim.account.submit(OrderRequest("by-hand", symbol, Side.SELL, shares, TimeInForce.CLS))
    sent, cash = sim.broker.called("submit"), sim.daemon.trader.cash
    sim.day(date(2024, 1, 10))
    sim.restart()
    sim.day(date(2024, 1, 11))
    assert sim.broker.called("submit") == sent
    assert any(f"others sold {shares} of our {shares} shares" in message for _, _, message in sim.alerts)
    for name in (CommandName.RESUME, CommandName.RECONCILE, CommandName.FLATTEN):
        number = enqueue(sim.store, name, sim.clock.now())
        sim.daemon.step()
        assert read_result(sim.store, number).refused, name
    number = enqueue(sim.store, CommandName.ACKNOWLEDGE, sim.clock.now())
    sim.daemon.step()
    assert not read_result(sim.store, number).refused
    assert "1 differences acknowledged" in read_result(sim.store, number).message
    sale = sim.account.order_by_client_id("by-hand")
    assert sale is not None
    assert sale.filled_average_price is not None
    assert sim.daemon.trader.positions[symbol] == 0
    assert sim.daemon.trader.cash == cash + shares * sale.filled_average_price
    assert not sim.daemon._c.ledger.external_positions()
    sim.check_agreement()
    sim.restart()
    assert sim.daemon.trader.cash == cash + shares * sale.filled_average_price
    sim.day(date(2024, 1, 17))
    assert sim.broker.called("submit") > sent
    assert min(p.quantity for p in sim.account.positions()) > 0
    sim.check_agreement()


def test_shares_that_went_without_a_sale_bring_no_cash(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9))
    symbol, shares = next((s, q) for s, q in sim.account._shares.items() if q)
    sim.account._shares[symbol] = shares - 5
    cash = sim.daemon.trader.cash
    enqueue(sim.store, CommandName.ACKNOWLEDGE, sim.clock.now())
    sim.daemon.step()
    assert sim.daemon.trader.positions[symbol] == shares - 5
    assert sim.daemon.trader.cash == cash
    assert not sim.daemon._c.ledger.external_positions()


def test_a_sale_of_shares_that_have_gone_since_the_decision_is_kept_back(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9))
    gone: list[str] = []

    def emptied(true: Any, symbols: Any) -> Any:
        """Asked for between the comparison and the orders: the shares of what will be sold are gone."""
        if not gone:
            gone.extend(s for s, q in sim.account._shares.items() if q)
            for symbol in gone:
                sim.account._shares[symbol] = Decimal(1)
        return true(symbols)

    sim.broker.overrides["assets"] = emptied
    sim.run_to(datetime(2024, 1, 10, 14, 10, tzinfo=UTC))
    sales = [i for i in sim.intents() if i.side == "sell"]
    assert sales
    assert {sim.state_of(i) for i in sales} == {"withheld"}
    assert any("but the account holds 1" in message for _, kind, message in sim.alerts if kind == "risk")
