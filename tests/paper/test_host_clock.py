"""A machine whose clock is set, or which sleeps. The daemon's own loop runs, on a simulated market."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from finrl_pod.paper.journal import schema
from tests.paper.factories import SimulatedDaemon, own_orders

DAY = date(2024, 1, 9)  # the first orders fill here
OPENS = datetime(2024, 1, 9, 14, 0, tzinfo=UTC)  # half an hour before the exchange


def test_a_machine_that_slept_decides_in_time_after_it_woke(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.host.sleeps.append((OPENS - timedelta(hours=10), 9.5 * 3600))
    sim.day(DAY)
    decided = sim.store.rows(schema.decisions)[0]
    assert (decided.bar, decided.outcome) == ("2024-01-08", "orders")
    assert abs(datetime.fromisoformat(decided.at) - OPENS) < timedelta(minutes=11)
    assert len(own_orders(sim)) == 2
    sim.check_agreement()


@pytest.mark.parametrize("minutes", [-120, 20, 120])
def test_a_clock_that_was_set_while_waiting_is_not_believed(tmp_path: Path, minutes: int) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.clock.sleep((OPENS - timedelta(hours=3) - sim.clock.now()).total_seconds())
    sim.host.steps.append((OPENS - timedelta(hours=2), timedelta(minutes=minutes)))
    sim.day(DAY)
    decided = sim.store.rows(schema.decisions)[0]
    assert (decided.bar, decided.outcome) == ("2024-01-08", "orders")
    assert abs(datetime.fromisoformat(decided.at) - OPENS) < timedelta(minutes=11)
    assert OPENS <= min(o.submitted_at for o in own_orders(sim)) < OPENS + timedelta(minutes=11)
    told = [message for _, kind, message in sim.alerts if kind == "clock"]
    assert len(told) == 1
    sim.check_agreement()


def test_the_brokers_clock_is_asked_for_before_each_round(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.clock.sleep((OPENS - timedelta(hours=1) - sim.clock.now()).total_seconds())
    sim.run_to(OPENS + timedelta(minutes=5))
    assert sim.store.count(schema.decisions) == 1
    assert sim.broker.called("clock") == 2  # at its start and before the round
