"""Recovery: a daemon that is killed at any write trades the same orders after its restart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from finrl_pod.paper.domain.records import OrderRequest, Side, TimeInForce
from finrl_pod.paper.execution.reconcile import MISMATCH_ENTRY
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, RiskState, enqueue, read_result
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.settings import OrderSettings, TimingSettings
from tests.paper.factories import SYMBOLS, PartialFillBroker, SimulatedDaemon, SwappingStrategy, config

LAST = date(2024, 1, 11)


class Killed(BaseException):
    """Simulates SIGKILL: a BaseException that the daemon does not catch."""


class WriteKiller:
    """Counts journal writes and raises Killed at write number `at`, before or after it is committed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.before = 0, -1, True
        write = Store.write

        @contextlib.contextmanager
        def killing_write(store: Store) -> Iterator[Connection]:
            self.count += 1
            fatal = self.count == self.at
            with write(store) as connection:
                yield connection
                if fatal and self.before:
                    raise Killed
            if fatal:
                raise Killed

        monkeypatch.setattr(Store, "write", killing_write)


def trades(sim: SimulatedDaemon) -> list[tuple[str, str, str, str]]:
    return [(o.client_order_id, str(o.filled_quantity), str(o.filled_average_price), o.status.value)
            for o in sim.account.orders("all")]  # fmt: skip


def run_with_restarts(
    sim: SimulatedDaemon, killer: WriteKiller | None = None, at: int = -1, *, before: bool = True
) -> int:
    """Run to the last day, killed once at the given write and restarted. Returns the number of kills."""
    killed = 0
    if killer is not None:
        killer.at, killer.before = at, before
    while True:
        try:
            if killed:
                if killer is not None:
                    killer.at = -1
                sim.restart()
            trade_partial_fills_and_halts(sim) if killer is not None else sim.day(LAST)
            return killed
        except Killed:
            killed += 1


def trade_partial_fills_and_halts(sim: SimulatedDaemon) -> None:
    """Trade buys that fill partially, then sales and buys whose remainder a halt cancels."""
    moment = datetime(2024, 1, 10, 14, 50, tzinfo=UTC)
    sim.run_to(moment)
    if not sim.store.rows(schema.commands):
        enqueue(sim.store, CommandName.HALT, max(moment, sim.clock.now()))
    sim.day(date(2024, 1, 10), hour=15)


def busy_simulation(folder: Path) -> SimulatedDaemon:
    folder.mkdir()
    orders = OrderSettings(fractional=True, collar=0.2)
    return SimulatedDaemon(
        folder,
        config(orders=orders, symbols=SYMBOLS[:2], timing=TimingSettings(poll=300.0)),
        SwappingStrategy(),
        kind=PartialFillBroker,
        max_sleep=7200.0,  # fewer command polls at night
    )


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["before the write", "after the write"])
def test_killed_at_every_write_trades_the_same_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    with monkeypatch.context() as patch:
        counter = WriteKiller(patch)
        sim = busy_simulation(tmp_path / "undisturbed")
        created = counter.count
        run_with_restarts(sim, counter)
        sim.assert_journal_matches_broker()
        undisturbed = trades(sim)
        sim.store.close()
    assert {name.rsplit(".")[-1][0] for name, *_ in undisturbed} == {"b", "s"}
    assert {status for *_, status in undisturbed} == {"expired", "canceled"}
    assert all(float(filled) > 0 for _, filled, *_ in undisturbed)
    assert counter.count > 30
    # The first writes create the file. A kill after a write differs by broker calls only: every third is enough.
    for at in range(created + 1, counter.count + 1, 1 if before else 3):
        with monkeypatch.context() as patch:
            killer = WriteKiller(patch)
            sim = busy_simulation(tmp_path / f"{at}")
            assert run_with_restarts(sim, killer, at, before=before) == 1
            sim.assert_journal_matches_broker()
            assert trades(sim) == undisturbed, f"write {at}"
            sim.store.close()


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["before the write", "after the write"])
def test_killed_at_every_write_of_a_flatten_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    at, killed = 1, True
    while killed:
        folder = tmp_path / f"{at}"
        folder.mkdir()
        sim = SimulatedDaemon(folder, max_sleep=7200.0)
        sim.day(date(2024, 1, 9))
        number = enqueue(sim.store, CommandName.FLATTEN, sim.clock.now())
        with monkeypatch.context() as patch:
            killer = WriteKiller(patch)
            killer.at, killer.before = at, before
            try:
                sim.daemon.step()
                killed = False
            except Killed:
                killer.at = -1
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


@pytest.mark.slow
def test_killed_after_acceptance_sends_no_second_order(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def submit_then_kill(original: Any, request: Any) -> Any:
        original(request)
        sim.broker.overrides.clear()
        raise Killed

    sim.broker.overrides["submit"] = submit_then_kill
    assert run_with_restarts(sim) == 1
    sim.assert_journal_matches_broker()
    names = [o.client_order_id for o in sim.account.orders("all")]
    assert len(names) == len(set(names))
    adopted = [row for row in sim.store.rows(schema.order_events) if row.source == "lookup"]
    assert adopted


def killed_before_submit(folder: Path) -> SimulatedDaemon:
    """Return a simulation whose daemon is killed just before it sends its first order."""
    sim = SimulatedDaemon(folder)

    def kill(original: Any, request: Any) -> Any:
        sim.broker.overrides.clear()
        raise Killed

    sim.broker.overrides["submit"] = kill
    return sim


def simulation_with_unsent_order(folder: Path) -> SimulatedDaemon:
    """Return a simulation whose daemon was killed with one order written but not sent."""
    sim = killed_before_submit(folder)
    with pytest.raises(Killed):
        sim.day(LAST)
    return sim


@pytest.mark.slow
def test_killed_before_the_request_sends_the_intent_once(tmp_path: Path) -> None:
    sim = killed_before_submit(tmp_path)
    assert run_with_restarts(sim) == 1
    sim.assert_journal_matches_broker()
    assert "sent again under the same id" in {row.detail for row in sim.store.rows(schema.order_events)}


@pytest.mark.slow
def test_killed_before_the_request_and_restarted_too_late_expires_the_intent(tmp_path: Path) -> None:
    sim = simulation_with_unsent_order(tmp_path)
    first = sim.intents()[0]
    sim.clock.sleep(3 * 3600)
    sim.restart()
    sim.day(LAST)
    assert sim.intent_state(first) == "expired"
    assert not [o for o in sim.account.orders("all") if first.bar.replace("-", "") in o.client_order_id]
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_unsent_order_waits_until_the_account_is_reconciled(tmp_path: Path) -> None:
    sim = simulation_with_unsent_order(tmp_path)
    sim.account._cash += 5_000
    sim.restart()
    sim.run_to(sim.clock.now() + timedelta(minutes=5))
    assert sim.broker.called("submit") == 1
    assert "mismatch" in sim.alert_kinds()
    enqueue(sim.store, CommandName.ACKNOWLEDGE, sim.clock.now())
    sim.day(date(2024, 1, 9))
    assert {sim.intent_state(i) for i in sim.intents()} == {"done"}
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_unsent_order_expires_if_the_account_is_not_reconciled_in_time(tmp_path: Path) -> None:
    sim = simulation_with_unsent_order(tmp_path)
    sim.account._cash += 5_000
    sim.restart()
    sim.day(date(2024, 1, 9))
    assert sim.broker.called("submit") == 1
    assert {sim.intent_state(i) for i in sim.intents()} == {"expired"}


@pytest.mark.slow
@pytest.mark.parametrize("state", [RiskState.REDUCING, RiskState.HALTED])
def test_unsent_order_is_checked_against_risk_limits_before_sending(tmp_path: Path, state: RiskState) -> None:
    sim = simulation_with_unsent_order(tmp_path)
    sim.restart()
    sim.daemon._c.risk.set(state, "while the daemon was down", sim.clock.now())
    sim.day(date(2024, 1, 9))
    assert sim.broker.called("submit") == 1
    assert {sim.intent_state(i) for i in sim.intents()} == {"withheld"}


@pytest.mark.slow
def test_decisions_missed_while_down_are_skipped_and_alerted(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9))
    sim.clock.sleep(3 * 86_400)
    sim.restart()
    sim.day(date(2024, 1, 16))
    missed = [row.bar for row in sim.store.rows(schema.decisions) if row.outcome == "missed"]
    assert missed == ["2024-01-09", "2024-01-10", "2024-01-11"]
    assert "missed" in sim.alert_kinds()
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_positions_held_before_the_first_start_are_external_and_never_traded(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.account._shares["BB"] = Decimal(7)
    sim.day(LAST)
    assert sim.daemon._c.ledger.external_positions() == {"BB": Decimal(7)}
    sim.assert_journal_matches_broker()
    assert all(Decimal(i.quantity) != 7 for i in sim.intents())


@pytest.mark.slow
def test_shares_bought_manually_become_external(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9), hour=12)
    request = OrderRequest("external", "CC", Side.BUY, Decimal(3), TimeInForce.OPG)
    sim.account.submit(request)
    sim.day(LAST)
    assert sim.daemon._c.ledger.external_positions() == {"CC": Decimal(3)}
    assert not sim.daemon._c.reconciler.differences
    assert sim.account.order_by_client_id("external").status.value == "filled"  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["shares", "cash"])
def test_reset_account_is_not_traded_until_acknowledged(tmp_path: Path, what: str) -> None:
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
    (difference,) = [message for _, kind, message in sim.alerts if kind == "mismatch"]
    missed = [message for _, kind, message in sim.alerts if kind == "missed"]
    assert missed
    assert all(message.endswith(MISMATCH_ENTRY) for message in (difference, *missed))
    page, _, anchor = MISMATCH_ENTRY.partition("/blob/main/")[2].partition("#")
    assert f'<a id="{anchor}"></a>' in (Path(__file__).parents[2] / page).read_text()
    number = enqueue(sim.store, CommandName.ACKNOWLEDGE, sim.clock.now())
    sim.day(date(2024, 1, 17))
    assert "1 differences acknowledged" in read_result(sim.store, number).message
    assert sim.broker.called("submit") > sent
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_own_shares_sold_manually_stop_trading_until_acknowledged(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 31, tzinfo=UTC))
    symbol, shares = next((s, q) for s, q in sim.daemon.trader.positions.items() if q)
    sim.account.submit(OrderRequest("external", symbol, Side.SELL, shares, TimeInForce.CLS))
    sent, cash = sim.broker.called("submit"), sim.daemon.trader.cash
    sim.day(date(2024, 1, 10))
    sim.restart()
    sim.day(date(2024, 1, 11))
    assert sim.broker.called("submit") == sent
    assert any(f"other clients sold {shares} of {shares} own shares" in message for _, _, message in sim.alerts)
    for name in (CommandName.RESUME, CommandName.RECONCILE):
        number = enqueue(sim.store, name, sim.clock.now())
        sim.daemon.step()
        assert read_result(sim.store, number).refused, name
    number = enqueue(sim.store, CommandName.ACKNOWLEDGE, sim.clock.now())
    sim.daemon.step()
    assert not read_result(sim.store, number).refused
    assert "1 differences acknowledged" in read_result(sim.store, number).message
    sale = sim.account.order_by_client_id("external")
    assert sale is not None
    assert sale.filled_average_price is not None
    assert sim.daemon.trader.positions[symbol] == 0
    assert sim.daemon.trader.cash == cash + shares * sale.filled_average_price
    assert not sim.daemon._c.ledger.external_positions()
    sim.assert_journal_matches_broker()
    sim.restart()
    assert sim.daemon.trader.cash == cash + shares * sale.filled_average_price
    sim.day(date(2024, 1, 17))
    assert sim.broker.called("submit") > sent
    assert min(p.quantity for p in sim.account.positions()) > 0
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_shares_removed_without_a_sale_add_no_cash(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_sale_of_shares_removed_since_the_decision_is_withheld(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9))
    removed: list[str] = []

    def remove_shares(original: Any, symbols: Any) -> Any:
        """Remove the shares to be sold; called between reconciliation and the orders."""
        if not removed:
            removed.extend(s for s, q in sim.account._shares.items() if q)
            for symbol in removed:
                sim.account._shares[symbol] = Decimal(1)
        return original(symbols)

    sim.broker.overrides["assets"] = remove_shares
    sim.run_to(datetime(2024, 1, 10, 14, 10, tzinfo=UTC))
    sales = [i for i in sim.intents() if i.side == "sell"]
    assert sales
    assert {sim.intent_state(i) for i in sales} == {"withheld"}
    assert any("but the account holds 1" in message for _, kind, message in sim.alerts if kind == "risk")
