"""Estimating the broker's clock from delayed responses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from finrl_pod.paper.domain.clocks import BrokerTime, ManualClock
from tests.paper.factories import HostClock

START = datetime(2024, 3, 1, 12, 0, tzinfo=UTC)


def query_time(time: BrokerTime, clock: ManualClock, offset: float, outbound: float, inbound: float) -> float:
    """Query a broker clock that is `offset` seconds ahead; return the estimated host clock error in seconds.

    outbound, inbound: seconds that the request and the response take.
    """
    sent = time.reading()
    clock.sleep(outbound)
    broker_time = clock.now() + timedelta(seconds=offset)
    clock.sleep(inbound)
    return time.set(broker_time, sent).total_seconds()


def test_slow_response_does_not_shift_the_clock() -> None:
    clock = ManualClock(START)
    time = BrokerTime(clock)
    for outbound, inbound in ((0.0, 30.0), (30.0, 0.0), (15.0, 15.0)):
        assert query_time(time, clock, 0.0, outbound, inbound) == 0.0
        assert time.now() == clock.now()


def test_clock_offset_is_estimated_within_the_round_trip_time() -> None:
    for offset in (300.0, -300.0):
        clock = ManualClock(START)
        time = BrokerTime(clock)
        assert abs(query_time(time, clock, offset, 1.0, 2.0) + offset) <= 3.0
        # A faster response narrows the estimate; a slower one does not widen it.
        assert abs(query_time(time, clock, offset, 0.1, 0.1) + offset) <= 0.2
        assert abs(query_time(time, clock, offset, 20.0, 5.0) + offset) <= 0.2
        assert abs((time.now() - clock.now()).total_seconds() - offset) <= 0.2


def test_clock_step_is_reported_until_the_next_broker_reading() -> None:
    clock = ManualClock(START)
    host = HostClock(clock)
    time = BrokerTime(host)
    clock.sleep(3600)
    assert time.clock_slip == 0.0
    for step in (timedelta(hours=2), timedelta(hours=-3)):
        host.step += step
        assert time.clock_slip == step.total_seconds()
        time.set(clock.now(), time.reading())
        assert time.clock_slip == 0.0
        assert time.now() == clock.now()


def test_clock_step_during_a_reading_is_reported() -> None:
    clock = ManualClock(START)
    host = HostClock(clock)
    time = BrokerTime(host)
    reading = time.reading()
    host.step = timedelta(minutes=10)
    time.set(clock.now(), reading)
    assert time.clock_slip == 600.0
