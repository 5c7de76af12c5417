"""Trading cycles from the exchange calendar: when to decide, when to send orders, and when to give up on fills.

The calendar includes half days, holidays and daylight saving; the host time zone does not matter.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise

from finrl_pod.errors import BrokerUnavailable, InputError
from finrl_pod.paper.domain.port import Broker
from finrl_pod.paper.domain.records import Session
from finrl_pod.paper.settings import IntradaySettings, PaperConfig, ScheduleSettings

EXCHANGE = "XNYS"
CONTINUOUS = "24/7"
CONTINUOUS_DELAY = timedelta(minutes=2)  # after midnight UTC, until the last bars of the day are served, then orders
CONTINUOUS_PERIOD = timedelta(hours=6)  # after midnight UTC, in which orders are sent
OPEN_CUTOFF = timedelta(minutes=2)  # orders for the opening auction are refused from 9:28 New York time
CLOSE_CUTOFF = timedelta(minutes=10)  # orders for the closing auction are refused from 15:50
SEND_MARGIN = timedelta(seconds=30)  # last submission before a cutoff
AUCTION_GRACE = timedelta(minutes=15)  # after an auction, until unfilled orders are given up
DAY_ORDER_CUTOFF = timedelta(minutes=5)  # last submission of a DAY order before the close
QUERIED_AHEAD = timedelta(days=30)  # of the broker's calendar; later sessions come from the library
BAR_DELAY = timedelta(seconds=10)  # after a minute, until its bar is served


@dataclass(frozen=True)
class TradingCycle:
    """One decision and its orders. All times are UTC.

    bar: last complete session; of a decision within the session, that session. time: end of the bar that such a
    decision is taken on, None for daily ones. session: the one in which orders fill. opens: time of the decision and
    first submission. deadline: last submission. auction: when orders fill. ends: unfilled orders are given up.
    """

    bar: date
    session: Session
    opens: datetime
    deadline: datetime
    auction: datetime
    ends: datetime
    time: datetime | None = None

    @property
    def id(self) -> str:
        """The decision bar in the journal: an ISO date, with the time if the decision is taken within the session."""
        return self.bar.isoformat() if self.time is None else f"{self.time:%Y-%m-%dT%H:%M}"

    @property
    def late_deadline(self) -> datetime:
        """Last submission of a DAY order of this cycle, such as a purchase that waited for sales."""
        return self.session.close - DAY_ORDER_CUTOFF


class Calendar:
    """Sessions of the New York exchange, or UTC days of a market that never closes (CONTINUOUS).

    They are those that the library knows, but for the range of dates that a broker reported.
    """

    def __init__(self, exchange: str = EXCHANGE) -> None:
        self.exchange = exchange
        self.continuous = exchange == CONTINUOUS
        self._reported: dict[date, Session] = {}  # by date, in order

    def query(self, broker: Broker, start: date, now: datetime) -> None:
        """Use the sessions of a broker from `start` to some weeks after `now`: it knows unscheduled closures.

        Raises BrokerUnavailable if none of them is after `now`.
        """
        sessions = broker.calendar(start, (now + QUERIED_AHEAD).date())
        if all(session.open <= now for session in sessions):
            raise BrokerUnavailable(f"the broker's calendar has no session after {now:%Y-%m-%d %H:%M} UTC")
        self._reported = {session.date: session for session in sorted(sessions, key=lambda session: session.date)}

    def reported_changes(self) -> dict[str, list[str] | None]:
        """Return open and close by ISO date of sessions that a broker reported otherwise, None for a closed day."""
        if not self._reported:
            return {}
        known_sessions = {s.date: s for s in Calendar(self.exchange).sessions(min(self._reported), max(self._reported))}
        days = sorted({*known_sessions, *self._reported})
        changed_days = [day for day in days if known_sessions.get(day) != self._reported.get(day)]
        sessions = {day: self._reported.get(day) for day in changed_days}
        return {
            str(day): None if session is None else [session.open.isoformat(), session.close.isoformat()]
            for day, session in sessions.items()
        }

    def change(self, changes: Mapping[str, list[str] | None]) -> None:
        """Use the sessions that `reported_changes` returned."""
        if not changes:
            return
        days = sorted(map(date.fromisoformat, changes))
        margin = timedelta(days=14)  # the range of reported sessions ends with sessions
        sessions = {session.date: session for session in self.sessions(days[0] - margin, days[-1] + margin)}
        for day, hours in zip(days, (changes[str(day)] for day in days), strict=True):
            sessions.pop(day, None)
            if hours is not None:
                sessions[day] = Session(day, *map(datetime.fromisoformat, hours))
        self._reported = dict(sorted(sessions.items()))

    def sessions(self, start: date, end: date) -> tuple[Session, ...]:
        """Return the sessions with start <= date <= end, in order. Raises InputError beyond the calendar end."""
        days, sessions = _load_sessions(self.exchange, start.year // 10 * 10, _horizon())
        if end > days[-1]:
            raise InputError(f"the date {end} is beyond the exchange calendar, which ends on {days[-1]}")
        known = sessions[bisect_left(days, start) : bisect_right(days, end)]
        if not self._reported:
            return known
        first, last = min(self._reported), max(self._reported)
        reported = {day: session for day, session in self._reported.items() if start <= day <= end}
        others = {session.date: session for session in known if not first <= session.date <= last}
        return tuple(session for _, session in sorted({**others, **reported}.items()))

    def last_closed(self, now: datetime) -> Session:
        """Return the last session that closed at or before `now`."""
        days = self.sessions(now.date() - timedelta(days=14), now.date() + timedelta(days=1))
        return next(session for session in reversed(days) if session.close <= now)

    def cycles(self, now: datetime, settings: ScheduleSettings) -> tuple[TradingCycle, ...]:
        """Return the cycles of about two weeks that end after `now`, earliest first."""
        days = self.sessions(now.date() - timedelta(days=14), now.date() + timedelta(days=14))
        cycles = [self.cycle(session, previous, settings) for previous, session in pairwise(days)]
        return tuple(c for c in cycles if c.ends > now)

    def next_cycle(self, now: datetime, config: PaperConfig) -> TradingCycle:
        """Return the earliest cycle that ends after `now`."""
        if not config.intraday.minutes:
            return self.cycles(now, config.schedule)[0]
        days = self.sessions(now.date() - timedelta(days=1), now.date() + timedelta(days=14))
        cycles = (c for session in days if session.close > now for c in intraday_cycles(session, config.intraday))
        return next(cycle for cycle in cycles if cycle.ends > now)

    def cycles_since(self, bar: str, now: datetime, settings: ScheduleSettings) -> tuple[TradingCycle, ...]:
        """Return the cycles with bars after `bar` (an ISO date) that open at or before `now`."""
        first = date.fromisoformat(bar)
        days = self.sessions(first, now.date() + timedelta(days=1))
        cycles = (self.cycle(session, previous, settings) for previous, session in pairwise(days))
        return tuple(c for c in cycles if c.bar > first and c.opens <= now)

    def cycle(self, session: Session, previous: Session, settings: ScheduleSettings) -> TradingCycle:
        """Return the cycle whose orders fill in `session`, decided on the session before it.

        A UTC day of a market that never closes is decided once the bars of the day before are served.
        """
        if self.continuous:
            opens = session.open + CONTINUOUS_DELAY
            deadline = session.open + CONTINUOUS_PERIOD
            return TradingCycle(previous.date, session, opens, deadline, opens, session.close - DAY_ORDER_CUTOFF)
        auction, cutoff = (session.open, OPEN_CUTOFF) if settings.mode == "open" else (session.close, CLOSE_CUTOFF)
        return TradingCycle(
            bar=previous.date,
            session=session,
            opens=auction - timedelta(minutes=settings.lead_minutes),
            deadline=auction - cutoff - SEND_MARGIN,
            auction=auction,
            ends=auction + AUCTION_GRACE,
        )


def calendar_of(config: PaperConfig) -> Calendar:
    """Return the calendar of the broker of a config."""
    return Calendar(CONTINUOUS if config.broker.continuous else EXCHANGE)


def order_hours(config: PaperConfig) -> tuple[float, float] | None:
    """Fractions of a UTC day between which orders may fill in a market that never closes; None for an auction."""
    day = timedelta(days=1)
    return (CONTINUOUS_DELAY / day, (day - DAY_ORDER_CUTOFF) / day) if config.broker.continuous else None


def intraday_cycles(session: Session, settings: IntradaySettings) -> list[TradingCycle]:
    """Return the cycles within a session: one at the end of each bar, while there is time for DAY orders to fill."""
    length = timedelta(minutes=settings.minutes)
    count = (session.close - DAY_ORDER_CUTOFF - session.open) // length
    times = [session.open + k * length for k in range(1, count + 1)]
    ends = [*times[1:], session.close]
    return [
        TradingCycle(session.date, session, time + BAR_DELAY, time + (end - time) / 2, time, end, time=time)
        for time, end in zip(times, ends, strict=True)
    ]


def _horizon() -> date:
    """Return the last known session date, at least a year ahead, as of the current date."""
    return date(datetime.now(UTC).year + 1, 12, 31)


@cache
def _load_sessions(exchange: str, first_year: int, until: date) -> tuple[list[date], tuple[Session, ...]]:
    """Return dates and sessions from that year until `until`. Cached."""
    import exchange_calendars

    with warnings.catch_warnings():  # it uses a pandas API that newer versions deprecate
        warnings.simplefilter("ignore", DeprecationWarning)
        table = exchange_calendars.get_calendar(exchange, start=f"{first_year}-01-01", end=str(until)).schedule
    days = [day.date() for day in table.index]
    opens, closes = ([t.to_pydatetime().astimezone(UTC) for t in table[column]] for column in ("open", "close"))
    return days, tuple(Session(*session) for session in zip(days, opens, closes, strict=True))
