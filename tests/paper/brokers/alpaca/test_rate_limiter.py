"""Rate limiter: compliance with the broker's limit under load, and priority of cancels."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import pytest

from finrl_pod.paper.brokers.alpaca.transport import URGENT_RESERVE, RateLimiter, RateLimitReached
from tests.fake_alpaca.server_fixtures import wait_until


class TestClock:
    """A clock that a test moves by `offset`, or that runs at a speed."""

    __test__ = False

    def __init__(self, speed: float = 0.0) -> None:
        self.offset = 0.0
        self._speed = speed
        self._began = time.monotonic()

    def monotonic(self) -> float:
        return self.offset + self._speed * (time.monotonic() - self._began)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.monotonic(), UTC)

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        time.sleep(min(seconds / self._speed, max_real_seconds))

    def real_seconds(self, seconds: float) -> float:
        return seconds / self._speed if self._speed else seconds


def test_no_window_exceeds_the_limit_wherever_the_broker_counts() -> None:
    """The broker may count a request at any time between sending and response: check the worst case."""
    clock = TestClock(speed=600.0)
    limiter = RateLimiter(clock, limit=20)
    sent: list[float] = []
    answered: list[float] = []

    def worker(seconds: float) -> None:
        for _ in range(15):
            with limiter.request():
                sent.append(clock.monotonic())
                time.sleep(seconds)
                answered.append(clock.monotonic())

    threads = [threading.Thread(target=worker, args=(0.001 * i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(sent) == 60
    # Worst case: the earliest possible time at one end of the window, the latest at the other.
    for end in sent:
        assert sum(end - 60.0 < moment <= end for moment in answered) <= 20
    # Not too slow either: 60 requests at 18 per minute (two are reserved for cancels) need just over three minutes.
    assert max(sent) < 6 * 60


def test_part_of_the_limit_is_reserved_for_cancels() -> None:
    clock = TestClock()
    limiter = RateLimiter(clock)
    for _ in range(200 - URGENT_RESERVE):
        with limiter.request(max_wait=0.0):
            pass
    with pytest.raises(RateLimitReached) as caught, limiter.request(max_wait=2.0):
        pass
    assert 60.0 <= caught.value.seconds <= 61.0
    for _ in range(URGENT_RESERVE):
        with limiter.request(urgent=True, max_wait=0.0):
            pass
    with pytest.raises(RateLimitReached), limiter.request(urgent=True, max_wait=2.0):
        pass
    clock.offset += 61.0
    with limiter.request(max_wait=0.0):
        pass


def test_waiting_cancel_goes_first() -> None:
    clock = TestClock()
    limiter = RateLimiter(clock, limit=1)
    order: list[str] = []

    def send(name: str, urgent: bool) -> None:
        with limiter.request(urgent=urgent):
            pass
        order.append(name)  # after the request has ended: the clock may move from here on

    with limiter.request():
        plain = [threading.Thread(target=send, args=("order", False)) for _ in range(3)]
        for thread in plain:
            thread.start()
        time.sleep(0.05)
        cancel = threading.Thread(target=send, args=("cancel", True))
        cancel.start()
        wait_until(lambda: limiter._urgent_waiting)
    for sent in range(1, 5):
        clock.offset += 61.0
        wait_until(lambda sent=sent: len(order) == sent)
    for thread in (*plain, cancel):
        thread.join(timeout=10)
    assert order == ["cancel", "order", "order", "order"]


def test_wait_demanded_by_the_broker_holds_all_requests() -> None:
    clock = TestClock()
    limiter = RateLimiter(clock)
    limiter.hold(30.0)
    for urgent in (False, True):
        with pytest.raises(RateLimitReached) as caught, limiter.request(urgent=urgent, max_wait=1.0):
            pass
        assert caught.value.seconds == pytest.approx(30.0)
    clock.offset += 30.0
    with limiter.request(max_wait=0.0):
        pass
