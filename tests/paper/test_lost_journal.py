"""A journal that does not have the orders of its run at the broker: nothing is traded, and the owner is told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from finrl_pod.errors import JournalError
from finrl_pod.paper.domain.intents import client_order_id
from finrl_pod.paper.domain.records import OrderRequest, Side, TimeInForce
from finrl_pod.paper.journal import schema
from finrl_pod.paper.settings import StrategyConfig
from tests.paper.factories import (
    PartialFillBroker,
    RotatingStrategy,
    SimulatedDaemon,
    SwappingStrategy,
    config,
    own_orders,
)

FIRST, LATER, LAST = date(2024, 1, 9), date(2024, 1, 10), date(2024, 1, 12)


def lose(sim: SimulatedDaemon) -> None:
    sim.store.close()
    for file in sim.journal.parent.glob(f"{sim.journal.name}*"):
        file.unlink()


def assert_nothing_is_traded(sim: SimulatedDaemon) -> None:
    orders, positions = len(own_orders(sim)), sim.account.positions()
    for _ in range(2):  # the file that the first start leaves does not count as a journal either
        sim.alerts.clear()
        sim.restart()
        with pytest.raises(JournalError, match="the journal was lost, or is an old copy"):
            sim.day(LAST)
        assert [(level, kind) for level, kind, _ in sim.alerts] == [("critical", "journal")]
    assert (len(own_orders(sim)), sim.account.positions()) == (orders, positions)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [None, PartialFillBroker], ids=["filled", "partially filled"])
def test_lost_journal_stops_the_run(tmp_path: Path, kind: type[PartialFillBroker] | None) -> None:
    sim = SimulatedDaemon(tmp_path, **({} if kind is None else {"kind": kind}))  # type: ignore[arg-type]
    sim.day(LATER)
    lose(sim)
    assert_nothing_is_traded(sim)


@pytest.mark.slow
def test_lost_journal_of_several_strategies_stops_the_run(tmp_path: Path) -> None:
    parts = (StrategyConfig(name="one", strategy="x", share=0.5), StrategyConfig(name="two", strategy="x", share=0.5))
    settings = config(strategy="", strategies=parts)
    sim = SimulatedDaemon(tmp_path, settings, strategies=[RotatingStrategy(), RotatingStrategy()])
    sim.day(LATER)
    lose(sim)
    assert_nothing_is_traded(sim)


@pytest.mark.slow
@pytest.mark.parametrize("unfilled", [False, True], ids=["filled", "without a fill"])
def test_old_copy_of_the_journal_stops_the_run(tmp_path: Path, unfilled: bool) -> None:
    """Its orders are all at the broker, but later ones are not in it."""
    sim = SimulatedDaemon(tmp_path)
    sim.day(FIRST)
    copy = tmp_path / "copy"
    sim.store.back_up(copy)
    if not unfilled:
        sim.day(LATER)
    else:
        sim.run_to(datetime(2024, 1, 10, 14, 10, tzinfo=UTC))
        sim.daemon.stop()
        sim.daemon.run()
    assert len({order.client_order_id.split(".")[2] for order in own_orders(sim)}) > 1
    lose(sim)
    shutil.copy(copy, sim.journal)
    assert_nothing_is_traded(sim)


@pytest.mark.slow
@pytest.mark.parametrize("check", [lambda sim: sim.daemon._c.reconciler.compare(), lambda sim: sim.day(LAST)])
def test_unknown_order_of_the_run_stops_a_running_daemon(
    tmp_path: Path, check: Callable[[SimulatedDaemon], object]
) -> None:
    """Another daemon trades the same run with another journal."""
    sim = SimulatedDaemon(tmp_path, strategy=SwappingStrategy(), settings=config(symbols=("AA", "BB")))
    sim.day(FIRST)
    unknown = client_order_id("test", "2024-01-09", "AA", Side.BUY, 7)
    sim.account.submit(OrderRequest(unknown, "AA", Side.BUY, Decimal(1), TimeInForce.DAY))
    with pytest.raises(JournalError, match=unknown):
        check(sim)


def test_orders_of_other_runs_and_clients_do_not_stop_a_first_start(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    other = client_order_id("other", "2024-01-05", "AA", Side.BUY, 0)
    for name in (other, "by hand"):
        sim.account.submit(OrderRequest(name, "AA", Side.BUY, Decimal(3), TimeInForce.DAY))
    sim.clock.sleep(timedelta(days=1).total_seconds())
    sim.day(LATER)
    assert sim.store.count(schema.decisions) > 0
    assert sim.daemon._c.ledger.external_positions() == {"AA": Decimal(6)}
    assert not sim.daemon._c.reconciler.differences
    ((level, message),) = [(level, text) for level, kind, text in sim.alerts if kind == "other_run"]
    assert level == "warning"
    assert other in message


@pytest.mark.slow
def test_second_run_on_the_account_is_alerted_by_the_first(tmp_path: Path) -> None:
    """Once, by its orders or their fills."""
    sim = SimulatedDaemon(tmp_path)
    sim.day(FIRST)
    assert "other_run" not in sim.alert_kinds()
    other = client_order_id("other", "2024-01-09", "AA", Side.BUY, 0)
    sim.account.submit(OrderRequest(other, "AA", Side.BUY, Decimal(3), TimeInForce.DAY))
    sim.day(LAST)
    assert [kind for _, kind, _ in sim.alerts].count("other_run") == 1
