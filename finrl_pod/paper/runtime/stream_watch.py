"""Is the stream of updates telling us anything? Polling finds everything all the same; the stream only makes it sooner.

A quiet stream is no fault: orders may wait for their auction for hours. It is stale when polling has found what the
stream should have told, and the stream has said nothing for `stale` seconds since; or when it has been gone that long.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from finrl_pod.paper.brokers.port import Broker, Clock
from finrl_pod.paper.execution.order_manager import Alert


class StreamWatch:
    """Raises one alarm when the stream goes stale, and one when it speaks again. stale: the clock's seconds."""

    def __init__(self, broker: Broker, clock: Clock, stale: float, alert: Alert) -> None:
        self._broker = broker
        self._clock = clock
        self._after = timedelta(seconds=stale)
        self._alert = alert
        self._untold: datetime | None = None
        self._gone: datetime | None = None
        self.stale = False

    def found_by_polling(self, listened: datetime) -> None:
        """An order has changed, and the stream had not told until it was last listened to."""
        if self._untold is None:
            self._untold = listened

    def forget(self) -> None:
        """What was found until now happened while nobody listened: recovery is no fault of the stream."""
        self._untold = None

    @property
    def doubtful(self) -> bool:
        """Something was not told yet: look again soon."""
        return self._untold is not None and not self.stale

    def look(self) -> None:
        """Called once a turn."""
        state, now = self._broker.stream(), self._clock.now()
        if not state.offered:
            return
        if state.last_message is not None and self._untold is not None and state.last_message >= self._untold:
            self._untold = None
        self._gone = None if state.connected else self._gone or now
        since = self._gone or self._untold
        if since is not None and now - since >= self._after:
            if not self.stale:
                why = f"is not connected ({state.detail})" if self._gone else "is connected and tells nothing"
                self._alert(
                    "warning",
                    "stale_stream",
                    f"the stream of order updates {why} since {since:%H:%M:%S} UTC: orders are polled instead",
                )
                self._broker.reconnect_stream()
            self.stale = True
        elif since is None and self.stale:
            self.stale = False
            self._alert("info", "stale_stream", "the stream of order updates is back")
