"""Host clock steps and suspends: the daemon loop on a simulated market."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.paper.journal import schema
from tests.paper.factories import SimulatedDaemon, for_first_calls, own_orders

DAY = date(2024, 1, 9)  # the first orders fill here
DECISION_TIME = datetime(2024, 1, 9, 14, 0, tzinfo=UTC)  # 30 minutes before the exchange opens


def test_suspended_host_decides_on_time_after_resuming(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.host.sleeps.append((DECISION_TIME - timedelta(hours=10), 9.5 * 3600))
    sim.day(DAY)
    decision = sim.store.rows(schema.decisions)[0]
    assert (decision.bar, decision.outcome) == ("2024-01-08", "orders")
    assert abs(datetime.fromisoformat(decision.at) - DECISION_TIME) < timedelta(minutes=11)
    assert len(own_orders(sim)) == 2
    sim.assert_journal_matches_broker()


@pytest.mark.slow
@pytest.mark.parametrize("minutes", [-120, 20, 120])
def test_clock_step_while_waiting_does_not_move_the_decision(tmp_path: Path, minutes: int) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.clock.sleep((DECISION_TIME - timedelta(hours=3) - sim.clock.now()).total_seconds())
    sim.host.steps.append((DECISION_TIME - timedelta(hours=2), timedelta(minutes=minutes)))
    sim.day(DAY)
    decision = sim.store.rows(schema.decisions)[0]
    assert (decision.bar, decision.outcome) == ("2024-01-08", "orders")
    assert abs(datetime.fromisoformat(decision.at) - DECISION_TIME) < timedelta(minutes=11)
    assert DECISION_TIME <= min(o.submitted_at for o in own_orders(sim)) < DECISION_TIME + timedelta(minutes=11)
    alerts = [message for _, kind, message in sim.alerts if kind == "clock"]
    assert len(alerts) == 1
    sim.assert_journal_matches_broker()


def test_broker_clock_is_queried_before_each_cycle(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.clock.sleep((DECISION_TIME - timedelta(hours=1) - sim.clock.now()).total_seconds())
    sim.run_to(DECISION_TIME + timedelta(minutes=5))
    assert sim.store.count(schema.decisions) == 1
    assert sim.broker.called("clock") == 2  # at startup and before the cycle


@pytest.mark.slow
def test_broker_clock_is_queried_every_six_hours(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 12))
    before = sim.broker.called("clock")
    sim.day(date(2024, 1, 14))
    assert sim.broker.called("clock") - before == 8


@pytest.mark.slow
def test_clock_step_during_recovery_does_not_postpone_the_decision(tmp_path: Path) -> None:
    """The step comes after the broker's clock was checked, so that the daemon starts to wait for the wrong day."""
    sim = SimulatedDaemon(tmp_path)
    sim.clock.sleep((DECISION_TIME - timedelta(hours=1) - sim.clock.now()).total_seconds())

    def step(original: Any) -> Any:
        sim.host.step = timedelta(hours=3)
        return original()

    sim.broker.overrides["positions"] = for_first_calls(1, step)
    sim.day(DAY)
    decision = sim.store.rows(schema.decisions)[0]
    assert (decision.bar, decision.outcome) == ("2024-01-08", "orders")
    assert abs(datetime.fromisoformat(decision.at) - DECISION_TIME) < timedelta(minutes=11)


@pytest.mark.slow
@pytest.mark.parametrize("year", [1, 1970, 2099])
def test_impossible_clock_of_the_broker_is_not_used(tmp_path: Path, year: int) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9))
    wrong = datetime(year, 1, 1, tzinfo=UTC)
    sim.broker.overrides["clock"] = for_first_calls(4, lambda _: wrong)
    sim.day(date(2024, 1, 12))
    assert [message for _, kind, message in sim.alerts if kind == "unavailable" and "clock" in message]
    assert sim.store.count(schema.decisions, schema.decisions.c.outcome == "orders") == 4
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_answer_without_raw_bars_is_unavailable(tmp_path: Path) -> None:
    """A decision is tried again until its deadline."""
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 9))

    def empty(original: Any, symbols: Any, start: Any, end: Any, adjustment: str) -> Any:
        found = original(symbols, start, end, adjustment)
        if adjustment != "raw":
            return found
        columns = {name: getattr(found, name)[:0] for name in ("times", "open", "high", "low", "close", "volume")}
        return dataclasses.replace(found, **columns)

    sim.broker.overrides["bars"] = empty
    sim.day(date(2024, 1, 10))
    assert "unavailable" in sim.alert_kinds()
    assert sim.store.last(schema.decisions).outcome == "missed"
