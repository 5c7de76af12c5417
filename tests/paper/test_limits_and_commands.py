"""Risk limits, commands and shutdown: the daemon loop on a simulated market."""

from __future__ import annotations

import functools
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.errors import BrokerUnavailable, DaemonError, JournalError
from finrl_pod.paper.domain.records import (
    Ambiguous,
    Confirmed,
    OrderRequest,
    OrderStatus,
    Side,
    TimeInForce,
)
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, RiskState, enqueue, read_result
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.settings import OrderSettings, RiskSettings
from tests.paper.factories import FunctionStrategy, SimulatedDaemon, config, for_first_calls, own_orders

DAY = date(2024, 1, 9)  # the first orders fill here


@pytest.mark.slow
def test_loss_beyond_the_limit_allows_only_reducing_orders_until_resume(tmp_path: Path) -> None:
    limits = RiskSettings(max_position=1.0, max_order=1.0, max_turnover=4.0, daily_loss=0.001, drawdown=0.9)
    sim = SimulatedDaemon(tmp_path, config(risk=limits))
    sim.day(date(2024, 1, 25))
    assert sim.daemon._c.risk.state is RiskState.REDUCING
    since = next(row.at for row in sim.store.rows(schema.risk_states))
    later = [i for i in sim.intents() if i.at > since]
    assert {sim.intent_state(i) for i in later if i.side == "buy"} == {"withheld"}
    assert {sim.intent_state(i) for i in later if i.side == "sell"} <= {"done"}
    sim.restart()
    assert sim.daemon._c.risk.state is RiskState.REDUCING
    enqueue(sim.store, CommandName.RESUME, sim.clock.now())
    sim.clock.sleep(3600)
    sim.daemon.step()
    assert sim.daemon._c.risk.state is RiskState.ACTIVE
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_targets_above_the_position_limit_are_cut_and_traded(tmp_path: Path) -> None:
    limits = RiskSettings(max_position=0.4, max_order=0.5, max_turnover=2.0, daily_loss=0.9)
    weights = lambda window: np.array([0.6, 0.3, 0.1])  # noqa: E731
    settings = config(risk=limits, orders=OrderSettings(collar=0.2, fractional=True))
    sim = SimulatedDaemon(tmp_path, settings, FunctionStrategy(weights))
    sim.day(date(2024, 1, 12))
    intents = [i for i in sim.intents() if i.bar == "2024-01-08"]
    assert {sim.intent_state(i) for i in sim.intents()} == {"done"}
    bought = {i.symbol: float(i.quantity) * float(i.reference_price) / 100_000 for i in intents}
    # 0.6, 0.3, 0.1 of 0.98 become 0.4, 0.435, 0.145, and then 0.4, 0.4, 0.18.
    assert bought == pytest.approx({"AA": 0.4, "BB": 0.4, "CC": 0.18}, rel=1e-6)
    assert [kind for _, kind, _ in sim.alerts].count("limits") == 1
    assert "risk" not in sim.alert_kinds()
    sim.restart()
    sim.day(date(2024, 1, 16))
    assert [kind for _, kind, _ in sim.alerts].count("limits") == 1


@pytest.mark.slow
def test_halt_issued_while_stopped_applies_after_restarts(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(DAY)
    sent = sim.broker.called("submit")
    assert sim.daemon.trading
    enqueue(sim.store, CommandName.HALT, sim.clock.now())
    sim.restart()
    sim.day(date(2024, 1, 11))
    sim.restart()
    assert sim.daemon._c.risk.state is RiskState.HALTED
    sim.day(date(2024, 1, 12))
    assert not sim.daemon.trading
    assert sim.broker.called("submit") == sent
    enqueue(sim.store, CommandName.RESUME, sim.clock.now())
    sim.day(date(2024, 1, 16))
    assert sim.daemon.trading


@pytest.mark.slow
def test_halt_applies_while_orders_are_being_sent(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def halt_and_time_out(original: Any, request: Any) -> Any:
        enqueue(sim.store, CommandName.HALT, sim.clock.now())
        return Ambiguous("timeout")

    sim.broker.overrides["submit"] = for_first_calls(1, halt_and_time_out)
    sim.day(DAY)
    assert sim.daemon._c.risk.state is RiskState.HALTED
    assert sim.broker.called("submit") == 1
    assert not own_orders(sim)


@pytest.mark.slow
def test_flatten_sells_only_own_shares_and_stops_buying(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.account._shares["BB"] = Decimal(7)
    sim.day(DAY, hour=15)
    number = enqueue(sim.store, CommandName.FLATTEN, sim.clock.now())
    sim.day(date(2024, 1, 10), hour=20)
    assert "are being sold" in read_result(sim.store, number).message
    assert {p.symbol: p.quantity for p in sim.account.positions()} == {"BB": Decimal(7)}
    assert not any(sim.daemon.trader.positions.values())
    sim.day(date(2024, 1, 12))
    assert {p.symbol: p.quantity for p in sim.account.positions()} == {"BB": Decimal(7)}
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_flatten_sells_what_is_certainly_own_while_account_and_journal_differ(tmp_path: Path) -> None:
    """One symbol has external shares that nobody recorded, another lost own shares; cash differs too."""
    sim = SimulatedDaemon(tmp_path, strategy=FunctionStrategy(lambda window: np.array([0.3, 0.3, 0.3])))
    sim.day(DAY)
    own = dict(sim.daemon.trader.positions)
    assert set(own) == {"AA", "BB", "CC"}
    sim.account._shares["AA"] += 5
    sim.account._shares["BB"] -= 10
    sim.account._cash += 500
    sim.restart()
    sim.day(date(2024, 1, 10), hour=15)
    assert sim.daemon._c.reconciler.differences
    number = enqueue(sim.store, CommandName.FLATTEN, sim.clock.now())
    sim.day(date(2024, 1, 11), hour=20)
    result = read_result(sim.store, number)
    assert not result.refused
    assert "3 positions are being sold; 10 shares of BB are left, on which account and journal differ" in result.message
    left = {p.symbol: p.quantity for p in sim.account.positions() if p.quantity}
    assert left == {"AA": Decimal(5)}
    sold = {o.symbol: o.filled_quantity for o in own_orders(sim) if o.side is Side.SELL}
    assert sold == {"AA": own["AA"], "BB": own["BB"] - 10, "CC": own["CC"]}


def test_errors_of_the_broker_at_a_stop_are_retried(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    sim.daemon.stop()
    sim.broker.overrides["fills_since"] = for_first_calls(2, unavailable)
    sim.daemon.run()
    assert {o.status for o in own_orders(sim)} == {OrderStatus.CANCELED}
    assert "shutdown" not in sim.alert_kinds()
    sim.assert_journal_matches_broker()


def test_stop_ends_after_the_shutdown_timeout_if_the_broker_never_answers(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    sim.daemon.stop()
    sim.broker.overrides["fills_since"] = unavailable
    began = sim.clock.now()
    sim.daemon.run()
    assert timedelta(seconds=25) < sim.clock.now() - began < timedelta(seconds=60)
    (alert,) = [(level, text) for level, kind, text in sim.alerts if kind == "shutdown"]
    assert alert == ("critical", "own orders may still be live: the broker did not answer for 30 s (503)")


def test_stop_without_own_orders_alerts_nothing_if_the_broker_never_answers(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.daemon.stop()
    sim.broker.overrides["fills_since"] = unavailable
    sim.daemon.run()
    assert "shutdown" not in sim.alert_kinds()


def unavailable(original: Any, *arguments: Any, **named: Any) -> Any:
    raise BrokerUnavailable("503")


@pytest.mark.slow
def test_stop_cancels_only_own_orders(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    sim.account.submit(OrderRequest("external", "CC", Side.BUY, Decimal(1), TimeInForce.CLS))
    sim.daemon.stop()
    sim.daemon.run()
    assert {o.status for o in own_orders(sim)} == {OrderStatus.CANCELED}
    assert sim.account.order_by_client_id("external").live  # type: ignore[union-attr]
    sim.assert_journal_matches_broker()


def test_stop_while_sending_withholds_the_remaining_orders(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def stop(original: Any, request: Any) -> Any:
        sim.daemon.stop()
        return original(request)

    sim.broker.overrides["submit"] = stop
    sim.day(DAY)
    assert sim.broker.called("submit") == 1
    assert [o.status for o in own_orders(sim)] == [OrderStatus.CANCELED]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 1000], ids=["once", "during cancellation too"])
def test_unexpected_error_stops_the_daemon_and_cancels_own_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    orders = sim.daemon._c.orders
    monkeypatch.setattr(
        orders, "read_stream", functools.partial(for_first_calls(times, lambda original: 1 // 0), orders.read_stream)
    )
    with pytest.raises(DaemonError, match="ZeroDivisionError") as failed:
        sim.day(DAY)
    assert failed.value.exit_code == 1
    assert ("own orders were cancelled" if times == 1 else "own orders may still be live") in str(failed.value)
    assert {o.status for o in own_orders(sim)} == {OrderStatus.CANCELED}
    assert "failed" in sim.alert_kinds()


@pytest.mark.slow
def test_temporarily_unreadable_runs_folder_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedDaemon(tmp_path)

    def locked(original: Any) -> Any:
        raise PermissionError(13, "Permission denied", "runs/example")

    monkeypatch.setattr(sim.source, "current", functools.partial(for_first_calls(3, locked), sim.source.current))
    sim.day(DAY)
    assert any("Permission denied" in message for _, kind, message in sim.alerts if kind == "unavailable")
    assert len(own_orders(sim)) == 2


@pytest.mark.slow
def test_stop_command_is_acknowledged_and_does_not_affect_the_next_start(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    number = enqueue(sim.store, CommandName.STOP, sim.clock.now())
    sim.daemon.run()
    assert read_result(sim.store, number).message == "stopping"
    assert {o.status for o in own_orders(sim)} == {OrderStatus.CANCELED}
    sim.restart()
    sim.day(date(2024, 1, 11))
    assert len(own_orders(sim)) > 2


@pytest.mark.slow
def test_unwritable_journal_stops_the_daemon_and_cancels_live_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    sent = sim.broker.called("submit")

    def full(store: Store) -> Any:
        raise JournalError("the journal cannot be used (database or disk is full): free some space")

    monkeypatch.setattr(Store, "write", full)
    number = len([name for name, _ in sim.broker.calls if name == "cancel"])
    with pytest.raises(JournalError):
        sim.daemon._c.alert("warning", "test", "test alert")
    monkeypatch.setattr(sim.daemon._c.orders, "read_stream", lambda: full(sim.store))
    with pytest.raises(JournalError):
        sim.daemon.run()
    assert {o.status for o in own_orders(sim)} == {OrderStatus.CANCELED}
    assert len([name for name, _ in sim.broker.calls if name == "cancel"]) > number
    assert sim.broker.called("submit") == sent


@pytest.mark.slow
def test_vanished_order_halts(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    sim.account._orders.clear()
    sim.account._by_client.clear()
    sim.day(DAY)
    assert sim.daemon._c.risk.state is RiskState.HALTED
    assert any("vanished" in message for _, _, message in sim.alerts)
    enqueue(sim.store, CommandName.ACKNOWLEDGE, sim.clock.now())
    sim.clock.sleep(60)
    sim.daemon.step()
    assert not sim.daemon._c.ledger.open


def test_wrong_host_clock_is_alerted_and_the_broker_clock_is_used(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["clock"] = lambda _: sim.clock.now() + timedelta(minutes=5)
    sim.day(DAY)
    assert "clock" in sim.alert_kinds()
    decision = sim.store.rows(schema.decisions)[0]
    assert datetime.fromisoformat(decision.at) - timedelta(minutes=5) < datetime(2024, 1, 9, 14, 0, tzinfo=UTC)


def test_confirmation_without_an_order_is_resolved_by_a_query(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["submit"] = lambda original, request: (original(request), Confirmed())[1]
    sim.day(DAY)
    assert all(sim.intent_state(i) == "done" for i in sim.intents())
    sim.assert_journal_matches_broker()
