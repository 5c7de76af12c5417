"""Moments of a round, from the exchange's calendar."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from finrl_pod.errors import InputError
from finrl_pod.paper.runtime import schedule
from finrl_pod.paper.runtime.schedule import Calendar, TradingCycle
from finrl_pod.paper.settings import ScheduleSettings

NEW_YORK = ZoneInfo("America/New_York")


def round_at(moment: datetime, mode: str = "open", lead: float = 30.0) -> TradingCycle:
    return Calendar().cycles(moment, ScheduleSettings(mode, lead))[0]  # type: ignore[arg-type]


def new_york(moment: datetime) -> str:
    return moment.astimezone(NEW_YORK).strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize("day", ["2024-03-08", "2024-03-11", "2024-11-01", "2024-11-04"])
def test_daylight_saving_moves_nothing_in_new_york(day: str) -> None:
    found = round_at(datetime.fromisoformat(f"{day}T10:00").replace(tzinfo=UTC))
    assert new_york(found.opens) == f"{day} 09:00:00"
    assert new_york(found.deadline) == f"{day} 09:27:30"
    assert new_york(found.auction) == f"{day} 09:30:00"


def test_a_half_day_closes_at_one() -> None:
    found = round_at(datetime(2024, 11, 29, 14, tzinfo=UTC), "close")
    assert (new_york(found.opens), new_york(found.deadline)) == ("2024-11-29 12:30:00", "2024-11-29 12:49:30")
    assert found.bar == date(2024, 11, 27)  # Thanksgiving lies between


def test_a_holiday_and_a_weekend_have_no_round() -> None:
    found = round_at(datetime(2024, 7, 3, 18, tzinfo=UTC))
    assert (found.bar, found.session.date) == (date(2024, 7, 3), date(2024, 7, 5))


def test_every_order_leaves_within_the_brokers_hours_over_years() -> None:
    """The opening auction refuses orders from 9:28 on, the closing one from ten minutes before the close."""
    calendar = Calendar()
    for mode, minutes in (("open", 2), ("close", 10)):
        moment = datetime(2022, 1, 3, tzinfo=UTC)
        while moment.year < 2025:
            found = calendar.cycles(moment, ScheduleSettings(mode, 25))[0]  # type: ignore[arg-type]
            assert found.opens < found.deadline < found.auction - timedelta(minutes=minutes)
            assert found.bar < found.session.date
            assert calendar.last_closed(found.opens).date == found.bar
            moment = found.ends + timedelta(seconds=1)


def test_rounds_since_a_bar_are_those_that_were_missed() -> None:
    missed = Calendar().cycles_since("2024-01-08", datetime(2024, 1, 12, 3, tzinfo=UTC), ScheduleSettings())
    assert [str(r.bar) for r in missed] == ["2024-01-09", "2024-01-10"]


def test_a_daemon_that_runs_for_years_extends_its_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_horizon", lambda: date(2025, 12, 31))
    with pytest.raises(InputError, match="2025-12-31"):
        round_at(datetime(2026, 1, 5, 10, tzinfo=UTC))
    monkeypatch.undo()
    monkeypatch.setattr(schedule, "_horizon", lambda: date(2026, 12, 31))
    assert round_at(datetime(2026, 1, 5, 10, tzinfo=UTC)).session.date == date(2026, 1, 5)


def test_the_calendar_is_known_for_a_year_ahead() -> None:
    today = datetime.now(UTC).date()
    assert Calendar().sessions(today, today + timedelta(days=364))
