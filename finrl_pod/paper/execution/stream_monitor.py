"""Health check of the stream of order updates. The stream only speeds things up; polling finds every change.

A quiet stream is not a fault: orders may wait hours for their auction. The stream is stale if it stayed silent for
`stale` seconds after polling found a change that it should have reported, or if it was disconnected for that long.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from finrl_pod.paper.domain.port import Broker, Clock
from finrl_pod.paper.execution.order_manager import Alert

STALE_STREAM_SECONDS = 90.0  # silence of the stream after polling found a change; then an alert and a reconnect


class StreamMonitor:
    """Alerts once when the stream becomes stale, and once when it is back. stale_after: seconds of the clock.

    A silent stream is back with its next update, not with the reply to a reconnect: that may be at night.
    """

    def __init__(self, broker: Broker, clock: Clock, stale_after: float, alert: Alert) -> None:
        self._broker = broker
        self._clock = clock
        self._stale_after = timedelta(seconds=stale_after)
        self._alert = alert
        self._unreported_since: datetime | None = None
        self._disconnected_since: datetime | None = None
        self._alerted = False  # that it is stale, and not yet that it is back
        self._silent_since: datetime | None = None  # time of an alert for its silence
        self.stale = False

    def report_polled_change(self, stream_read_at: datetime) -> None:
        """Note that polling found a change which the stream had not reported when it was last read."""
        if self._unreported_since is None:
            self._unreported_since = stream_read_at

    def reset(self) -> None:
        """Ignore changes found so far: the stream was not read during recovery."""
        self._unreported_since = None

    @property
    def awaiting_report(self) -> bool:
        """True if the stream has not reported a change yet, so that it should be checked again soon."""
        return self._unreported_since is not None and not self.stale

    def check(self) -> None:
        """Update `stale`, alert a change of it, and reconnect a stale stream. Called once per iteration."""
        state = self._broker.stream()
        now = self._clock.now()
        if not state.offered:
            return
        is_unreported = self._unreported_since
        if state.last_message is not None and is_unreported is not None and state.last_message >= is_unreported:
            self._unreported_since = None
        self._disconnected_since = None if state.connected else self._disconnected_since or now
        since = self._disconnected_since or self._unreported_since
        if since is not None and now - since >= self._stale_after:
            if not self.stale:
                why = f"is disconnected ({state.detail})" if self._disconnected_since else "is connected but silent"
                message = f"the stream of order updates {why} since {since:%H:%M:%S} UTC; orders are polled instead"
                if not self._alerted:
                    self._alert("warning", "stale_stream", message)
                self._alerted = True
                if not self._disconnected_since:
                    self._silent_since = now
                self._broker.reconnect_stream()
            self.stale = True
        elif since is None and self._alerted:
            self.stale = False
            if self._silent_since is None or (state.last_update and state.last_update > self._silent_since):
                self._alerted = False
                self._silent_since = None
                self._alert("info", "stale_stream", "the stream of order updates is back")
