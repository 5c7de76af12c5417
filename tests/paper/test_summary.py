"""The end-of-day summary: its numbers, and that it is sent once after each close."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.errors import BrokerError
from finrl_pod.paper.domain.records import SUMMARY, Reason, Rejected
from finrl_pod.paper.domain.schedule import Calendar
from finrl_pod.paper.journal import schema
from finrl_pod.paper.monitoring.status import Metrics, status
from finrl_pod.paper.settings import MonitoringSettings, StrategyConfig
from tests.paper.factories import FunctionStrategy, RotatingStrategy, SimulatedDaemon, config

pytestmark = pytest.mark.slow

DAILY = config(monitoring=MonitoringSettings(summary_minutes=20))


def summaries(sim: SimulatedDaemon) -> list[str]:
    return [message for level, kind, message in sim.alerts if kind == SUMMARY and level == "info"]


def test_one_summary_follows_each_close(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, DAILY)
    sim.day(date(2024, 1, 12))
    sim.restart()
    sim.day(date(2024, 1, 13))
    days = [session.date for session in Calendar().sessions(date(2024, 1, 8), date(2024, 1, 12))]
    assert [text.split(":")[0] for text in summaries(sim)] == [str(day) for day in days]
    assert "next decision: 2024-01-16 14:00 UTC" in summaries(sim)[-1]  # Monday is a holiday
    times = [row.at[11:16] for row in sim.store.rows(schema.alerts, schema.alerts.c.kind == SUMMARY)]
    assert set(times) == {"21:20"}


def test_profits_add_up_to_the_change_of_equity(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, DAILY)
    calendar = Calendar()
    for day in calendar.sessions(date(2024, 1, 9), date(2024, 1, 19)):
        sim.day(day.date)
        before = calendar.sessions(date(2024, 1, 1), day.date)[-2]
        found = sim.daemon.summary(day, day.close)
        mark = sim.store.last(schema.equity, schema.equity.c.session == before.date.isoformat())
        assert sum(found.profits.values(), Decimal(0)) == pytest.approx(found.equity - Decimal(mark.equity))
        assert found.equity == sim.account.account().equity
        assert sum(found.orders.values()) == found.orders["filled"] == found.fills == 3 or day.date.day == 9
        assert found.day_return == pytest.approx(float(found.equity / Decimal(mark.equity)) - 1)
        assert f"P/L by symbol: {max(found.profits, key=lambda s: abs(found.profits[s]))}" in found.text()


@pytest.mark.parametrize("unfilled", ["", "BB"])
def test_distance_to_target_is_what_the_fills_left(tmp_path: Path, unfilled: str) -> None:
    sim = SimulatedDaemon(tmp_path, DAILY, FunctionStrategy(lambda _: [0.3, 0.3, 0.3]))

    def refuse(original: Any, request: Any) -> Any:
        return Rejected(Reason.OTHER, "no") if request.symbol == unfilled else original(request)

    sim.broker.overrides["submit"] = refuse
    sim.day(date(2024, 1, 9))
    (close,) = Calendar().sessions(date(2024, 1, 9), date(2024, 1, 9))
    found = sim.daemon.summary(close, close.close)
    expected = 0.3 * 0.98 if unfilled else 0.0  # of equity less the cash buffer
    assert found.distance == pytest.approx(expected, abs=0.005)
    assert f"distance to target: {found.distance:.2%} of equity" in summaries(sim)[-1]
    assert status(sim.store, DAILY).targets["test"].distance == pytest.approx(expected, abs=0.005)
    assert Metrics(sim.store, DAILY)()["distance_to_target"] == pytest.approx(expected, abs=0.005)


def test_several_strategies_and_differences_are_named(tmp_path: Path) -> None:
    parts = (StrategyConfig("slow", "x", share=0.5), StrategyConfig("fast", "x", share=0.4))
    hold = FunctionStrategy(lambda _: [0.3, 0.3, 0.3])
    sim = SimulatedDaemon(
        tmp_path, replace(DAILY, strategy="", strategies=parts), strategies=[hold, RotatingStrategy()]
    )
    sim.day(date(2024, 1, 10), 12)
    sim.account._shares["AA"] -= 1  # sold by someone else
    sim.day(date(2024, 1, 11))
    text = summaries(sim)[-1]
    assert "strategies: slow " in text
    assert ", fast " in text
    assert "no differences" not in text
    assert "AA" in text.split("account and journal:")[1].splitlines()[0]


def test_without_prices_the_closes_before_are_used(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, DAILY)

    def unavailable(original: Any, symbols: Any) -> Any:
        raise BrokerError("no answer")

    sim.broker.overrides["latest"] = unavailable
    sim.day(date(2024, 1, 10))
    assert "prices of the close were not available" in summaries(sim)[-1]
    assert not [alert for alert in sim.alerts if alert[0] == "critical"]


def test_no_summary_if_it_is_switched_off(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 10))
    assert summaries(sim) == []
