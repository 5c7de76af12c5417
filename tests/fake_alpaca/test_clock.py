"""The simulated clock: its pace, clients in other processes, and speeds that follow requests and sleeps."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from finrl_pod.errors import InputError
from finrl_pod.fake_alpaca.scaled_clock import ClockClient, Pace, ScaledClock
from tests.fake_alpaca.server_fixtures import STOPPED, StartServer, new_york, wait_until

DAY = 86_400.0


@pytest.mark.slow
def test_clock_runs_fast_during_a_sleep_and_slowly_otherwise(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(pace=STOPPED, clock=tmp_path / "clock.json").server
    clock = ClockClient(tmp_path / "clock.json")
    server.follow_client_sleep(10.0, 1e6)
    real, begin = time.monotonic(), clock.seconds()
    time.sleep(0.3)  # awake
    asleep_before = clock.seconds() - begin
    assert asleep_before <= 10.0 * (time.monotonic() - real)
    begin = clock.seconds()
    clock.sleep(3 * DAY)
    slept, real = clock.seconds() - begin, time.monotonic()
    # The server slows the clock down at the end of the sleep, before the client wakes up.
    assert 3 * DAY <= slept < 3 * DAY + 60.0
    begin = clock.seconds()
    time.sleep(0.2)
    assert clock.seconds() - begin <= 10.0 * (time.monotonic() - real) + 0.1


def test_clock_slows_down_when_a_sleep_ends_early(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(pace=STOPPED, clock=tmp_path / "clock.json").server
    clock = ClockClient(tmp_path / "clock.json")
    server.follow_client_sleep(10.0, 1e4)
    clock.sleep(30 * DAY, max_real_seconds=0.1)
    begin = clock.seconds()
    time.sleep(0.05)
    assert clock.seconds() - begin < 60.0


@pytest.mark.slow
def test_clock_stops_when_its_lease_expires() -> None:
    clock = ScaledClock(datetime(2024, 3, 1, tzinfo=UTC), Pace(0.0, 0.0))
    begin = clock.seconds()
    clock.set_pace(Pace(100.0, 100.0), lease=0.1)
    time.sleep(0.3)
    assert clock.seconds() - begin == pytest.approx(10.0)
    clock.renew()
    assert clock.seconds() - begin < 10.0 + 100.0 * 0.1  # the stop is not made up for
    time.sleep(0.2)
    assert clock.seconds() - begin == pytest.approx(20.0)


@pytest.mark.slow
def test_clock_slows_down_for_scheduled_actions(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(pace=STOPPED, clock=tmp_path / "clock.json").server
    clock = ClockClient(tmp_path / "clock.json")
    server.follow_client_sleep(10.0, 1e6)
    called_at: list[float] = []
    begin = clock.seconds()
    done = server.schedule(begin + DAY, lambda: called_at.append(server.clock.seconds()))
    clock.sleep(2 * DAY)
    assert done.is_set()
    assert DAY <= called_at[0] - begin < DAY + 60.0
    server.schedule(begin + 3 * DAY, lambda: server.set_pace(Pace(0.0, 0.0)))
    clock.sleep(3 * DAY, max_real_seconds=0.2)
    assert 3 * DAY <= clock.seconds() - begin < 3 * DAY + 60.0  # the clock stopped and the sleep timed out


def test_clock_client_reads_the_servers_time(start_server: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    with pytest.raises(InputError, match="holds no clock"):
        ClockClient(path)
    client = start_server(clock=path, pace=Pace(1000.0, 1000.0))
    clock = ClockClient(path)
    begin = clock.now()
    clock.sleep(200.0)
    assert (clock.now() - begin).total_seconds() >= 200.0
    assert abs(client.server.clock.seconds() - clock.seconds()) < 20.0
    client.server.jump(new_york("2024-03-04 10:00"))
    assert clock.now() >= new_york("2024-03-04 10:00")
    assert clock.real_seconds(1.0) == 0.005


def test_sleeping_client_checks_the_clock_every_millisecond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ScaledClock(datetime(2024, 1, 2, tzinfo=UTC), Pace(), tmp_path / "clock.json")
    clock = ClockClient(tmp_path / "clock.json")
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    clock.sleep(0.01)
    assert pauses
    assert max(pauses) <= 0.001


def test_pace_is_slow_inside_its_windows() -> None:
    pace = Pace(slow=10.0, fast=1000.0, windows=((5000.0, 5100.0),))
    assert pace.real_between(0.0, 10_000.0) == pytest.approx(5.0 + 10.0 + 4.9)
    assert pace.advance(0.0, 5.0) == pytest.approx(5000.0)
    assert pace.advance(0.0, 6.0) == pytest.approx(5010.0)
    assert pace.advance(4000.0, pace.real_between(4000.0, 7321.0)) == pytest.approx(7321.0)
    assert Pace(0.0, 0.0).real_between(0.0, 1.0) == float("inf")
    with pytest.raises(InputError, match="windows"):
        Pace(windows=((5.0, 7.0), (6.0, 9.0)))


def test_orders_fill_without_requests_when_the_clock_runs_fast(start_server: StartServer) -> None:
    client = start_server(pace=Pace(20_000.0, 20_000.0))
    order = client.buy(time_in_force="opg")
    wait_until(lambda: client.order(order)["status"] == "filled")
    assert client.order(order)["filled_at"] == "2024-03-01T14:30:00.000000Z"
