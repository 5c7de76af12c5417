"""The limit of requests: counted by somebody else, under load, in time that runs fast."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import pytest

from finrl_pod.paper.brokers.alpaca.rate_limiter import URGENT_RESERVE, RateLimiter, RateLimitReached


class Steps:
    """A clock that passes only when told to."""

    def __init__(self, speed: float = 0.0) -> None:
        self.at = 0.0
        self._speed = speed
        self._began = time.monotonic()

    def monotonic(self) -> float:
        return self.at + self._speed * (time.monotonic() - self._began)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.monotonic(), UTC)

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        time.sleep(min(seconds / self._speed, max_real_seconds))

    def real_seconds(self, seconds: float) -> float:
        return seconds / self._speed if self._speed else seconds


def test_no_minute_holds_more_than_the_limit_wherever_the_broker_counts() -> None:
    """The broker may count a request anywhere between its sending and its answer: take the worst of both."""
    clock = Steps(speed=600.0)
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
    # An earliest moment of counting for one end of the window, a latest one for the other.
    for end in sent:
        assert sum(end - 60.0 < moment <= end for moment in answered) <= 20
    # And it was no crawl: 60 requests at 18 a minute (two are kept for cancels) need three minutes and a bit.
    assert max(sent) < 6 * 60


def test_cancels_go_first_and_have_room_of_their_own() -> None:
    clock = Steps()
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
    clock.at += 61.0
    with limiter.request(max_wait=0.0):
        pass


def test_a_waiting_cancel_overtakes() -> None:
    clock = Steps()
    limiter = RateLimiter(clock, limit=1)
    order: list[str] = []

    def ask(name: str, urgent: bool) -> None:
        with limiter.request(urgent=urgent):
            order.append(name)

    with limiter.request():
        plain = [threading.Thread(target=ask, args=("order", False)) for _ in range(3)]
        for thread in plain:
            thread.start()
        time.sleep(0.05)
        cancel = threading.Thread(target=ask, args=("cancel", True))
        cancel.start()
        time.sleep(0.05)
    for _ in range(4):
        clock.at += 61.0
        time.sleep(0.15)
    for thread in (*plain, cancel):
        thread.join(timeout=10)
    assert order == ["cancel", "order", "order", "order"]


def test_the_brokers_word_holds_everything_back() -> None:
    clock = Steps()
    limiter = RateLimiter(clock)
    limiter.hold(30.0)
    for urgent in (False, True):
        with pytest.raises(RateLimitReached) as caught, limiter.request(urgent=urgent, max_wait=1.0):
            pass
        assert caught.value.seconds == pytest.approx(30.0)
    clock.at += 30.0
    with limiter.request(max_wait=0.0):
        pass
