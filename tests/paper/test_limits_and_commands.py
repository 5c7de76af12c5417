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
from finrl_pod.paper.journal.commands import CommandName, answered, ask
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
from tests.paper.made import World, config, first, orders

DAY = date(2024, 1, 9)  # the first orders fill here


def test_a_loss_beyond_the_limit_leaves_reducing_orders_only_until_resumed(tmp_path: Path) -> None:
    limits = RiskSettings(max_position=1.0, max_order=1.0, max_turnover=4.0, daily_loss=0.001, drawdown=0.9)
    world = World(tmp_path, config(risk=limits))
    world.day(date(2024, 1, 25))
    assert world.daemon._p.risk.state is RiskState.REDUCING
    since = next(row.at for row in world.store.rows(schema.risk_states))
    later = [i for i in world.intents() if i.at > since]
    assert {world.state_of(i) for i in later if i.side == "buy"} == {"withheld"}
    assert {world.state_of(i) for i in later if i.side == "sell"} <= {"done"}
    world.restart()
    assert world.daemon._p.risk.state is RiskState.REDUCING
    ask(world.store, CommandName.RESUME, world.clock.now())
    world.clock.sleep(3600)
    world.daemon.step()
    assert world.daemon._p.risk.state is RiskState.ACTIVE
    world.check_agreement()


def test_a_halt_given_while_down_holds_at_the_next_start_and_survives_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.day(DAY)
    sent = world.broker.called("submit")
    ask(world.store, CommandName.HALT, world.clock.now())
    world.restart()
    world.day(date(2024, 1, 11))
    world.restart()
    assert world.daemon._p.risk.state is RiskState.HALTED
    world.day(date(2024, 1, 12))
    assert world.broker.called("submit") == sent


def test_a_halt_works_while_the_loop_waits_in_the_middle_of_sending(tmp_path: Path) -> None:
    world = World(tmp_path)

    def slow(true: Any, request: Any) -> Any:
        ask(world.store, CommandName.HALT, world.clock.now())
        return Ambiguous("timeout")

    world.broker.instead["submit"] = first(1, slow)
    world.day(DAY)
    assert world.daemon._p.risk.state is RiskState.HALTED
    assert world.broker.called("submit") == 1
    assert not orders(world)


def test_flatten_sells_own_shares_alone_and_nothing_is_bought_after(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.account._shares["BB"] = Decimal(7)
    world.day(DAY, hour=15)
    number = ask(world.store, CommandName.FLATTEN, world.clock.now())
    world.day(date(2024, 1, 10), hour=20)
    assert "are being sold" in answered(world.store, number).words
    assert {p.symbol: p.quantity for p in world.account.positions()} == {"BB": Decimal(7)}
    assert not any(world.daemon.trader.positions.values())
    world.day(date(2024, 1, 12))
    assert {p.symbol: p.quantity for p in world.account.positions()} == {"BB": Decimal(7)}
    world.check_agreement()


def test_stopping_cancels_own_orders_and_leaves_foreign_ones(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    world.account.submit(OrderRequest("by-hand", "CC", Side.BUY, Decimal(1), TimeInForce.CLS))
    world.daemon.stop()
    world.daemon.run()
    assert {o.status for o in orders(world)} == {OrderStatus.CANCELED}
    assert world.account.order_by_client_id("by-hand").live  # type: ignore[union-attr]
    world.check_agreement()


def test_a_stop_while_orders_are_sent_keeps_back_the_rest(tmp_path: Path) -> None:
    world = World(tmp_path)

    def stop(true: Any, request: Any) -> Any:
        world.daemon.stop()
        return true(request)

    world.broker.instead["submit"] = stop
    world.day(DAY)
    assert world.broker.called("submit") == 1
    assert [o.status for o in orders(world)] == [OrderStatus.CANCELED]


@pytest.mark.parametrize("times", [1, 1000], ids=["once", "in the cancelling too"])
def test_what_nobody_foresaw_ends_the_daemon_with_own_orders_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    desk = world.daemon._p.desk
    monkeypatch.setattr(desk, "listen", functools.partial(first(times, lambda true: 1 // 0), desk.listen))
    with pytest.raises(DaemonError, match="ZeroDivisionError") as failed:
        world.day(DAY)
    assert failed.value.exit_code == 1
    assert ("own orders were cancelled" if times == 1 else "own orders may still be live") in str(failed.value)
    assert {o.status for o in orders(world)} == {OrderStatus.CANCELED}
    assert "failed" in world.kinds()


def test_a_folder_of_runs_that_cannot_be_read_just_now_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)

    def locked(true: Any) -> Any:
        raise PermissionError(13, "Permission denied", "runs/mine")

    monkeypatch.setattr(world.source, "current", functools.partial(first(3, locked), world.source.current))
    world.day(DAY)
    assert any("Permission denied" in message for _, kind, message in world.told if kind == "unavailable")
    assert len(orders(world)) == 2


def test_a_stop_by_command_is_answered_and_does_not_stop_the_next_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    number = ask(world.store, CommandName.STOP, world.clock.now())
    world.daemon.run()
    assert answered(world.store, number).words == "stopping"
    assert {o.status for o in orders(world)} == {OrderStatus.CANCELED}
    world.restart()
    world.day(date(2024, 1, 11))
    assert len(orders(world)) > 2


def test_a_journal_that_cannot_be_written_stops_everything_and_cancels_what_is_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    sent = world.broker.called("submit")

    def full(store: Store) -> Any:
        raise JournalError("the journal cannot be used (database or disk is full): free some space")

    monkeypatch.setattr(Store, "write", full)
    number = len([name for name, _ in world.broker.calls if name == "cancel"])
    with pytest.raises(JournalError):
        world.daemon._p.alert("warning", "test", "something to write")
    monkeypatch.setattr(world.daemon._p.desk, "listen", lambda: full(world.store))
    with pytest.raises(JournalError):
        world.daemon.run()
    assert {o.status for o in orders(world)} == {OrderStatus.CANCELED}
    assert len([name for name, _ in world.broker.calls if name == "cancel"]) > number
    assert world.broker.called("submit") == sent


def test_an_order_that_vanishes_halts(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    world.account._orders.clear()
    world.account._by_client.clear()
    world.day(DAY)
    assert world.daemon._p.risk.state is RiskState.HALTED
    assert any("vanished" in message for _, _, message in world.told)
    ask(world.store, CommandName.ACKNOWLEDGE, world.clock.now())
    world.clock.sleep(60)
    world.daemon.step()
    assert not world.daemon._p.book.open


def test_a_host_clock_that_is_off_follows_the_brokers_and_tells(tmp_path: Path) -> None:
    import dataclasses

    world = World(tmp_path)
    world.broker.instead["clock"] = lambda true: dataclasses.replace(
        true(), now=world.clock.now() + timedelta(minutes=5)
    )
    world.day(DAY)
    assert "clock" in world.kinds()
    decided = world.store.rows(schema.decisions)[0]
    assert datetime.fromisoformat(decided.at) - timedelta(minutes=5) < datetime(2024, 1, 9, 14, 0, tzinfo=UTC)


def test_confirmed_without_an_order_is_settled_by_asking(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.instead["submit"] = lambda true, request: (true(request), Confirmed())[1]
    world.day(DAY)
    assert all(world.state_of(i) == "done" for i in world.intents())
    world.check_agreement()
