"""The health check of the stream alerts a silent or disconnected stream once, and its return once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from finrl_pod.paper.domain.clocks import ManualClock
from finrl_pod.paper.domain.records import StreamState
from finrl_pod.paper.execution.stream_monitor import StreamMonitor


class Stream:
    """A broker with a stream whose reconnection succeeds at once."""

    def __init__(self) -> None:
        self.clock = ManualClock(datetime(2024, 1, 9, 21, tzinfo=UTC))
        self.state = StreamState(connected=True, last_message=self.clock.now(), last_update=self.clock.now())
        self.alerts: list[tuple[Any, ...]] = []
        self.monitor = StreamMonitor(self, self.clock, 90.0, lambda *alert: self.alerts.append(alert))  # type: ignore[arg-type]

    def stream(self) -> StreamState:
        return self.state

    def reconnect_stream(self) -> None:
        self.state = replace(self.state, connected=True, last_message=self.clock.now())

    def wait(self, seconds: float) -> list[str]:
        """Levels of all alerts so far, after a wait with checks."""
        for _ in range(10):
            self.clock.sleep(seconds / 10)
            self.monitor.check()
        return [alert[0] for alert in self.alerts]


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_stream_that_was_silent_is_back_with_an_update_only(stream: Stream) -> None:
    """A night passes after the reply to the reconnect, and further changes that it does not report."""
    stream.clock.sleep(1.0)
    stream.monitor.report_polled_change(stream.clock.now())
    assert stream.wait(200) == ["warning"]
    assert stream.wait(40_000) == ["warning"]
    assert not stream.monitor.stale
    stream.monitor.report_polled_change(stream.clock.now())
    assert stream.wait(200) == ["warning"]
    stream.state = replace(stream.state, last_message=stream.clock.now(), last_update=stream.clock.now())
    assert stream.wait(200) == ["warning", "info"]
    stream.monitor.report_polled_change(stream.clock.now())
    assert stream.wait(200)[2:] == ["warning"]


def test_stream_that_was_silent_is_not_back_after_a_disconnection_at_night(stream: Stream) -> None:
    stream.clock.sleep(1.0)
    stream.monitor.report_polled_change(stream.clock.now())
    assert stream.wait(200) == ["warning"]
    assert stream.wait(20) == ["warning"]
    stream.state = replace(stream.state, connected=False)
    assert stream.wait(2000) == ["warning"]
    stream.reconnect_stream()
    assert stream.wait(2000) == ["warning"]
    stream.state = replace(stream.state, last_message=stream.clock.now(), last_update=stream.clock.now())
    assert stream.wait(200) == ["warning", "info"]


def test_stream_that_was_disconnected_is_back_once_connected(stream: Stream) -> None:
    stream.state = replace(stream.state, connected=False)
    stream.reconnect_stream = lambda: None  # type: ignore[method-assign]
    assert stream.wait(200) == ["warning"]
    stream.state = replace(stream.state, connected=True)
    assert stream.wait(20) == ["warning", "info"]
