"""Times of a trading cycle from the exchange calendar."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from finrl_pod.errors import InputError
from finrl_pod.paper.domain import schedule
from finrl_pod.paper.domain.records import Session
from finrl_pod.paper.domain.schedule import Calendar, TradingCycle
from finrl_pod.paper.settings import ScheduleSettings

NEW_YORK = ZoneInfo("America/New_York")


def cycle_at(moment: datetime, mode: str = "open", lead: float = 30.0) -> TradingCycle:
    return Calendar().cycles(moment, ScheduleSettings(mode, lead))[0]  # type: ignore[arg-type]


def new_york(moment: datetime) -> str:
    return moment.astimezone(NEW_YORK).strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize("day", ["2024-03-08", "2024-03-11", "2024-11-01", "2024-11-04"])
def test_daylight_saving_does_not_change_new_york_times(day: str) -> None:
    cycle = cycle_at(datetime.fromisoformat(f"{day}T10:00").replace(tzinfo=UTC))
    assert new_york(cycle.opens) == f"{day} 09:00:00"
    assert new_york(cycle.deadline) == f"{day} 09:27:30"
    assert new_york(cycle.auction) == f"{day} 09:30:00"


def test_half_day_closes_at_13_00() -> None:
    cycle = cycle_at(datetime(2024, 11, 29, 14, tzinfo=UTC), "close")
    assert (new_york(cycle.opens), new_york(cycle.deadline)) == ("2024-11-29 12:30:00", "2024-11-29 12:49:30")
    assert cycle.bar == date(2024, 11, 27)  # the 28th is Thanksgiving


def test_holidays_and_weekends_have_no_cycle() -> None:
    cycle = cycle_at(datetime(2024, 7, 3, 18, tzinfo=UTC))
    assert (cycle.bar, cycle.session.date) == (date(2024, 7, 3), date(2024, 7, 5))


def test_orders_are_sent_within_broker_hours_over_years() -> None:
    """The opening auction refuses orders from 9:28, the closing auction from ten minutes before the close."""
    calendar = Calendar()
    for mode, minutes in (("open", 2), ("close", 10)):
        moment = datetime(2022, 1, 3, tzinfo=UTC)
        while moment.year < 2025:
            cycle = calendar.cycles(moment, ScheduleSettings(mode, 25))[0]  # type: ignore[arg-type]
            assert cycle.opens < cycle.deadline < cycle.auction - timedelta(minutes=minutes)
            assert cycle.bar < cycle.session.date
            assert calendar.last_closed(cycle.opens).date == cycle.bar
            moment = cycle.ends + timedelta(seconds=1)


def test_cycles_since_a_bar_are_the_missed_ones() -> None:
    missed = Calendar().cycles_since("2024-01-08", datetime(2024, 1, 12, 3, tzinfo=UTC), ScheduleSettings())
    assert [str(r.bar) for r in missed] == ["2024-01-09", "2024-01-10"]


@pytest.mark.slow
def test_calendar_is_extended_over_years(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_horizon", lambda: date(2025, 12, 31))
    with pytest.raises(InputError, match="2025-12-31"):
        cycle_at(datetime(2026, 1, 5, 10, tzinfo=UTC))
    monkeypatch.undo()
    monkeypatch.setattr(schedule, "_horizon", lambda: date(2026, 12, 31))
    assert cycle_at(datetime(2026, 1, 5, 10, tzinfo=UTC)).session.date == date(2026, 1, 5)


def test_calendar_covers_one_year_ahead() -> None:
    today = datetime.now(UTC).date()
    assert Calendar().sessions(today, today + timedelta(days=364))


def test_sessions_that_a_broker_reports_otherwise_can_be_recorded() -> None:
    class Reporting:
        def calendar(self, start: date, end: date) -> tuple[Session, ...]:
            sessions = [s for s in Calendar().sessions(start, end) if s.date != date(2024, 1, 17)]
            return tuple(replace(s, close=s.open) if s.date == date(2024, 1, 19) else s for s in sessions)

    calendar = Calendar()
    calendar.query(Reporting(), date(2024, 1, 2), datetime(2024, 1, 16, tzinfo=UTC))  # type: ignore[arg-type]
    changes = calendar.reported_changes()
    opens = "2024-01-19T14:30:00+00:00"
    assert changes == {"2024-01-17": None, "2024-01-19": [opens, opens]}
    restored = Calendar()
    restored.change(changes)
    period = (date(2023, 12, 1), date(2024, 3, 1))
    assert restored.sessions(*period) == calendar.sessions(*period)
    assert Calendar().reported_changes() == {}
