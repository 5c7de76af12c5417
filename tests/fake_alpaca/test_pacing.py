"""Time that runs slowly while the follower of the clock is awake, and flies while it sleeps."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from finrl_pod.fake_alpaca.scaled_clock import ClockClient, Pace, ScaledClock
from tests.fake_alpaca.serving import STILL, Start

DAY = 86_400.0


def test_a_sleep_of_days_takes_no_time_and_being_awake_costs_none_of_the_day(start: Start, tmp_path: Path) -> None:
    server = start(pace=STILL, clock=tmp_path / "clock.json").server
    clock = ClockClient(tmp_path / "clock.json")
    server.follow_client_sleep(10.0, 1e6)
    real, begin = time.monotonic(), clock.seconds()
    time.sleep(0.3)  # awake
    awake = clock.seconds() - begin
    assert awake <= 10.0 * (time.monotonic() - real)
    begin = clock.seconds()
    clock.sleep(3 * DAY)
    slept, real = clock.seconds() - begin, time.monotonic()
    # It wakes up at the moment it asked for: time slows down there by itself, not when the sleeper notices.
    assert 3 * DAY <= slept < 3 * DAY + 60.0
    begin = clock.seconds()
    time.sleep(0.2)
    assert clock.seconds() - begin <= 10.0 * (time.monotonic() - real) + 0.1


def test_who_wakes_up_early_does_not_see_time_fly_on(start: Start, tmp_path: Path) -> None:
    server = start(pace=STILL, clock=tmp_path / "clock.json").server
    clock = ClockClient(tmp_path / "clock.json")
    server.follow_client_sleep(10.0, 1e4)
    clock.sleep(30 * DAY, max_real_seconds=0.1)
    begin = clock.seconds()
    time.sleep(0.05)
    assert clock.seconds() - begin < 60.0


def test_time_stands_while_its_owner_does_not_run() -> None:
    clock = ScaledClock(datetime(2024, 3, 1, tzinfo=UTC), Pace(0.0, 0.0))
    begin = clock.seconds()
    clock.set_pace(Pace(100.0, 100.0), lease=0.1)
    time.sleep(0.3)
    assert clock.seconds() - begin == pytest.approx(10.0)
    clock.renew()
    assert clock.seconds() - begin < 10.0 + 100.0 * 0.1  # what was missed is not caught up with
    time.sleep(0.2)
    assert clock.seconds() - begin == pytest.approx(20.0)


def test_time_that_flies_stops_for_what_is_to_be_done_on_the_way(start: Start, tmp_path: Path) -> None:
    server = start(pace=STILL, clock=tmp_path / "clock.json").server
    clock = ClockClient(tmp_path / "clock.json")
    server.follow_client_sleep(10.0, 1e6)
    at: list[float] = []
    begin = clock.seconds()
    done = server.schedule(begin + DAY, lambda: at.append(server.clock.seconds()))
    clock.sleep(2 * DAY)
    assert done.is_set()
    assert DAY <= at[0] - begin < DAY + 60.0
    server.schedule(begin + 3 * DAY, lambda: server.set_pace(Pace(0.0, 0.0)))
    clock.sleep(3 * DAY, max_real_seconds=0.2)
    assert 3 * DAY <= clock.seconds() - begin < 3 * DAY + 60.0  # it stands, and the sleeper gave up
