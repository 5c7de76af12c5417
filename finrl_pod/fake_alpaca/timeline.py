"""What will happen when: events in the order of their moments, and of being set down where moments are equal."""

from __future__ import annotations

import heapq
from typing import NamedTuple


class Due(NamedTuple):
    """moment: UTC epoch seconds. what: the kind of event. name: of an order, a session or a corporate action."""

    moment: float
    number: int
    what: str
    name: str


class Timeline:
    """A queue of events."""

    def __init__(self) -> None:
        self._events: list[Due] = []
        self._count = 0

    def add(self, moment: float, what: str, name: str) -> None:
        self._count += 1
        heapq.heappush(self._events, Due(moment, self._count, what, name))

    def take(self, moment: float) -> Due | None:
        """The next event that is due by a moment, taken out; None when there is none."""
        return heapq.heappop(self._events) if self._events and self._events[0].moment <= moment else None

    @property
    def next(self) -> float | None:
        """The moment of the next event, or None."""
        return self._events[0].moment if self._events else None

    def kept(self) -> list[list[float | str]]:
        """For the state file."""
        return [[e.moment, e.what, e.name] for e in sorted(self._events)]

    def restore(self, values: list[tuple[float, str, str]]) -> None:
        self._events, self._count = [], 0
        for moment, what, name in values:
            self.add(moment, what, name)
