"""The broker's clock against ours, when the answer takes its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from finrl_pod.paper.runtime.clocks import BrokerTime, ManualClock
from tests.paper.factories import HostClock

START = datetime(2024, 3, 1, 12, 0, tzinfo=UTC)


def asked(time: BrokerTime, clock: ManualClock, off: float, there: float, back: float) -> float:
    """Ask a broker whose clock is `off` seconds ahead; the ways take `there` and `back` seconds. Returns our error."""
    sent = time.reading()
    clock.sleep(there)
    told = clock.now() + timedelta(seconds=off)
    clock.sleep(back)
    return time.set(told, sent).total_seconds()


def test_a_slow_answer_is_no_wrong_clock() -> None:
    clock = ManualClock(START)
    time = BrokerTime(clock)
    for there, back in ((0.0, 30.0), (30.0, 0.0), (15.0, 15.0)):
        assert asked(time, clock, 0.0, there, back) == 0.0
        assert time.now() == clock.now()


def test_a_clock_that_is_wrong_is_found_to_be_so_within_the_time_that_the_answer_took() -> None:
    for off in (300.0, -300.0):
        clock = ManualClock(START)
        time = BrokerTime(clock)
        assert abs(asked(time, clock, off, 1.0, 2.0) + off) <= 3.0
        # A quicker answer narrows it, a slower one does not widen it again.
        assert abs(asked(time, clock, off, 0.1, 0.1) + off) <= 0.2
        assert abs(asked(time, clock, off, 20.0, 5.0) + off) <= 0.2
        assert abs((time.now() - clock.now()).total_seconds() - off) <= 0.2


def test_a_clock_that_was_set_has_slipped_until_the_broker_is_asked_again() -> None:
    clock = ManualClock(START)
    host = HostClock(clock)
    time = BrokerTime(host)
    clock.sleep(3600)
    assert time.slipped == 0.0
    for step in (timedelta(hours=2), timedelta(hours=-3)):
        host.step += step
        assert time.slipped == step.total_seconds()
        time.set(clock.now(), time.reading())
        assert time.slipped == 0.0
        assert time.now() == clock.now()


def test_a_clock_that_was_set_while_the_broker_answered_is_asked_for_again() -> None:
    clock = ManualClock(START)
    host = HostClock(clock)
    time = BrokerTime(host)
    asked = time.reading()
    host.step = timedelta(minutes=10)
    time.set(clock.now(), asked)
    assert time.slipped == 600.0
