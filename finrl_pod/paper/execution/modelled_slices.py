"""Orders within the session as backtests and replays model them: sent at their times, with even volume.

These are slices, and the whole orders of a market that never closes, sent once a day is over.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from finrl_pod.evaluate.paper_backtest import SlicedExecution
from finrl_pod.market.slicing import SlicePlan, even_profile
from finrl_pod.paper.domain.schedule import TradingCycle, calendar_of
from finrl_pod.paper.settings import PaperConfig
from finrl_pod.types import Panel

WHOLE_DAY = (0.0, 1.0)  # of a bar that is no session of the exchange


def sliced_execution(config: PaperConfig, panel: Panel) -> SlicedExecution | None:
    """Return the slices of a config on the bars of a panel; None if its orders fill in an auction.

    A panel of daily bars has no volume within the day: the schedules of volume take it as even. The whole orders of a
    market that never closes are single slices.
    """
    settings = config.slicing
    calendar = calendar_of(config)
    if settings.schedule == "none" and not calendar.continuous:
        return None
    days = [day.item() for day in panel.times.astype("datetime64[D]")]
    sessions = calendar.sessions(days[0] - timedelta(days=7), days[-1])
    cycles = {
        day.date: calendar.cycle(day, previous, config.schedule, settings) for previous, day in pairwise(sessions)
    }
    fractions = [_fractions_of_session(cycles[day]) if day in cycles else WHOLE_DAY for day in days]

    def plan(steps: int) -> SlicePlan:
        name = "twap" if settings.schedule == "none" else settings.schedule
        return SlicePlan(name, even_profile(steps), 0.0, settings.participation, settings.urgency)

    return SlicedExecution(fractions, plan, settings.schedule != "none" and settings.fallback == "market")


def _fractions_of_session(cycle: TradingCycle) -> tuple[float, ...]:
    """When the orders of a cycle are sent and when the last of them ends, as parts of its session."""
    session = cycle.session
    window = cycle.window
    if window is None:
        times = [cycle.opens, cycle.ends]
    else:
        times = [window.start + k * window.interval for k in range(window.steps + 1)]
    return tuple((time - session.open) / (session.close - session.open) for time in times)
