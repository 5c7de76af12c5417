"""Limits that are met, commands that are given, and ends. The daemon's own loop runs, on a simulated market."""

from __future__ import annotations

import functools
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.errors import DaemonError, JournalError
from finrl_pod.paper.execution.risk import RiskState
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, enqueue, read_result
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.records import (
    Ambiguous,
    Confirmed,
    OrderRequest,
    OrderStatus,
    Side,
    TimeInForce,
)
from finrl_pod.paper.settings import RiskSettings
from tests.paper.factories import SimulatedDaemon, config, first, own_orders

DAY = date(2024, 1, 9)  # the first orders fill here


def test_a_loss_beyond_the_limit_leaves_reducing_orders_only_until_resumed(tmp_path: Path) -> None:
    limits = RiskSettings(max_position=1.0, max_order=1.0, max_turnover=4.0, daily_loss=0.001, drawdown=0.9)
    sim = SimulatedDaemon(tmp_path, config(risk=limits))
    sim.day(date(2024, 1, 25))
    assert sim.daemon._c.risk.state is RiskState.REDUCING
    since = next(row.at for row in sim.store.rows(schema.risk_states))
    later = [i for i in sim.intents() if i.at > since]
    assert {sim.state_of(i) for i in later if i.side == "buy"} == {"withheld"}
    assert {sim.state_of(i) for i in later if i.side == "sell"} <= {"done"}
    sim.restart()
    assert sim.daemon._c.risk.state is RiskState.REDUCING
    enqueue(sim.store, CommandName.RESUME, sim.clock.now())
    sim.clock.sleep(3600)
    sim.daemon.step()
    assert sim.daemon._c.risk.state is RiskState.ACTIVE
    sim.check_agreement()


def test_a_halt_given_while_down_holds_at_the_next_start_and_survives_it(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(DAY)
    sent = sim.broker.called("submit")
    enqueue(sim.store, CommandName.HALT, sim.clock.now())
    sim.restart()
    sim.day(date(2024, 1, 11))
    sim.restart()
    assert sim.daemon._c.risk.state is RiskState.HALTED
    sim.day(date(2024, 1, 12))
    assert sim.broker.called("submit") == sent


def test_a_halt_works_while_the_loop_waits_in_the_middle_of_sending(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def slow(true: Any, request: Any) -> Any:
        enqueue(sim.store, CommandName.HALT, sim.clock.now())
        return Ambiguous("timeout")

    sim.broker.overrides["submit"] = first(1, slow)
    sim.day(DAY)
    assert sim.daemon._c.risk.state is RiskState.HALTED
    assert sim.broker.called("submit") == 1
    assert not own_orders(sim)


def test_flatten_sells_own_shares_alone_and_nothing_is_bought_after(tmp_path: Path) -> None:
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
    sim.check_agreement()


def test_stopping_cancels_own_orders_and_leaves_foreign_ones(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    sim.account.submit(OrderRequest("by-hand", "CC", Side.BUY, Decimal(1), TimeInForce.CLS))
    sim.daemon.stop()
    sim.daemon.run()
    assert {o.status for o in own_orders(sim)} == {OrderStatus.CANCELED}
    assert sim.account.order_by_client_id("by-hand").live  # type: ignore[union-attr]
    sim.check_agreement()


def test_a_stop_while_orders_are_sent_keeps_back_the_rest(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)

    def stop(true: Any, request: Any) -> Any:
        sim.daemon.stop()
        return true(request)

    sim.broker.overrides["submit"] = stop
    sim.day(DAY)
    assert sim.broker.called("submit") == 1
    assert [o.status for o in own_orders(sim)] == [OrderStatus.CANCELED]


@pytest.mark.parametrize("times", [1, 1000], ids=["once", "in the cancelling too"])
def test_an_unexpected_error_ends_the_daemon_and_cancels_own_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    orders = sim.daemon._c.orders
    monkeypatch.setattr(orders, "read_stream", functools.partial(first(times, lambda true: 1 // 0), orders.read_stream))
    with pytest.raises(DaemonError, match="ZeroDivisionError") as failed:
        sim.day(DAY)
    assert failed.value.exit_code == 1
    assert ("own orders were cancelled" if times == 1 else "own orders may still be live") in str(failed.value)
    assert {o.status for o in own_orders(sim)} == {OrderStatus.CANCELED}
    assert "failed" in sim.alert_kinds()


def test_a_folder_of_runs_that_cannot_be_read_just_now_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = SimulatedDaemon(tmp_path)

    def locked(true: Any) -> Any:
        raise PermissionError(13, "Permission denied", "runs/mine")

    monkeypatch.setattr(sim.source, "current", functools.partial(first(3, locked), sim.source.current))
    sim.day(DAY)
    assert any("Permission denied" in message for _, kind, message in sim.alerts if kind == "unavailable")
    assert len(own_orders(sim)) == 2


def test_a_stop_by_command_is_answered_and_does_not_stop_the_next_start(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    number = enqueue(sim.store, CommandName.STOP, sim.clock.now())
    sim.daemon.run()
    assert read_result(sim.store, number).message == "stopping"
    assert {o.status for o in own_orders(sim)} == {OrderStatus.CANCELED}
    sim.restart()
    sim.day(date(2024, 1, 11))
    assert len(own_orders(sim)) > 2


def test_a_journal_that_cannot_be_written_stops_everything_and_cancels_what_is_live(
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
        sim.daemon._c.alert("warning", "test", "something to write")
    monkeypatch.setattr(sim.daemon._c.orders, "read_stream", lambda: full(sim.store))
    with pytest.raises(JournalError):
        sim.daemon.run()
    assert {o.status for o in own_orders(sim)} == {OrderStatus.CANCELED}
    assert len([name for name, _ in sim.broker.calls if name == "cancel"]) > number
    assert sim.broker.called("submit") == sent


def test_an_order_that_vanishes_halts(tmp_path: Path) -> None:
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


def test_a_wrong_host_clock_is_alerted_and_the_brokers_is_used(tmp_path: Path) -> None:
    import dataclasses

    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["clock"] = lambda true: dataclasses.replace(true(), now=sim.clock.now() + timedelta(minutes=5))
    sim.day(DAY)
    assert "clock" in sim.alert_kinds()
    decided = sim.store.rows(schema.decisions)[0]
    assert datetime.fromisoformat(decided.at) - timedelta(minutes=5) < datetime(2024, 1, 9, 14, 0, tzinfo=UTC)


def test_confirmed_without_an_order_is_settled_by_asking(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["submit"] = lambda true, request: (true(request), Confirmed())[1]
    sim.day(DAY)
    assert all(sim.state_of(i) == "done" for i in sim.intents())
    sim.check_agreement()
