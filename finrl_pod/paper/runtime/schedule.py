"""When to decide, until when to send, and when the outcome must be known: from the exchange's calendar alone.

Half days, holidays and daylight saving come with the calendar; the host's time zone is never asked.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise

from finrl_pod.errors import InputError
from finrl_pod.paper.records import Session
from finrl_pod.paper.settings import ScheduleSettings

EXCHANGE = "XNYS"
OPEN_CUTOFF = timedelta(minutes=2)  # orders for the opening auction are refused from 9:28 New York time
CLOSE_CUTOFF = timedelta(minutes=10)  # those for the closing auction from 15:50
MARGIN = timedelta(seconds=30)  # no order leaves us closer to a cutoff than that
SETTLE = timedelta(minutes=15)  # after an auction, until what did not fill in it is given up
DAY_END = timedelta(minutes=5)  # no DAY order is sent closer to the close than that


@dataclass(frozen=True)
class Round:
    """One decision and its orders. bar: the last session that was complete. All moments are UTC.

    opens: the decision is taken then, and orders may go. deadline: none is sent later. auction: when they fill.
    ends: what has not filled by then is given up.
    """

    bar: date
    session: Session
    opens: datetime
    deadline: datetime
    auction: datetime
    ends: datetime

    @property
    def late_deadline(self) -> datetime:
        """Until when a DAY order of this round may still be sent (a purchase that waited for sales)."""
        return self.session.close - DAY_END


class Calendar:
    """Sessions of the New York Stock Exchange."""

    def __init__(self, exchange: str = EXCHANGE) -> None:
        self.exchange = exchange

    def sessions(self, start: date, end: date) -> tuple[Session, ...]:
        """Those with start <= date <= end, in order. Raises InputError beyond the years that the calendar knows."""
        days, made = _sessions(self.exchange, start.year // 10 * 10, _horizon())
        if end > days[-1]:
            raise InputError(f"the exchange calendar ends on {days[-1]}, {end} was asked for: name an earlier date")
        return made[bisect_left(days, start) : bisect_right(days, end)]

    def last_closed(self, now: datetime) -> Session:
        """The newest session that had closed by then."""
        days = self.sessions(now.date() - timedelta(days=14), now.date() + timedelta(days=1))
        return next(session for session in reversed(days) if session.close <= now)

    def rounds(self, now: datetime, settings: ScheduleSettings) -> tuple[Round, ...]:
        """Rounds whose end lies after now, the earliest first: that of today, if it still goes on, and some more."""
        days = self.sessions(now.date() - timedelta(days=14), now.date() + timedelta(days=14))
        made = [round_of(session, before, settings) for before, session in pairwise(days)]
        return tuple(r for r in made if r.ends > now)

    def rounds_since(self, bar: str, now: datetime, settings: ScheduleSettings) -> tuple[Round, ...]:
        """Rounds of bars after that one (an ISO date) whose opening lies before now."""
        first = date.fromisoformat(bar)
        made = (round_of(b, a, settings) for a, b in pairwise(self.sessions(first, now.date() + timedelta(days=1))))
        return tuple(r for r in made if r.bar > first and r.opens <= now)


def round_of(session: Session, before: Session, settings: ScheduleSettings) -> Round:
    """The round whose orders fill in `session`, decided on the session before it."""
    lead = timedelta(minutes=settings.lead_minutes)
    auction, cutoff = (session.open, OPEN_CUTOFF) if settings.mode == "open" else (session.close, CLOSE_CUTOFF)
    return Round(
        bar=before.date,
        session=session,
        opens=auction - lead,
        deadline=auction - cutoff - MARGIN,
        auction=auction,
        ends=auction + SETTLE,
    )


def _horizon() -> date:
    """Until when sessions are known: a year ahead at least. It moves on with the years that a daemon runs."""
    return date(datetime.now(UTC).year + 1, 12, 31)


@cache
def _sessions(exchange: str, first_year: int, until: date) -> tuple[list[date], tuple[Session, ...]]:
    """Every session from that year on until a day: read once, searched often."""
    import exchange_calendars

    with warnings.catch_warnings():  # it reads pandas in a way that newer ones warn of
        warnings.simplefilter("ignore", DeprecationWarning)
        table = exchange_calendars.get_calendar(exchange, start=f"{first_year}-01-01", end=str(until)).schedule
    days = [day.date() for day in table.index]
    opens, closes = ([t.to_pydatetime().astimezone(UTC) for t in table[column]] for column in ("open", "close"))
    return days, tuple(Session(*session) for session in zip(days, opens, closes, strict=True))
