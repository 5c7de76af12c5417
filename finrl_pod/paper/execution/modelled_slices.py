"""Slices of a paper config as backtests and replays model them: sent at their times, with even volume."""

from __future__ import annotations

from datetime import timedelta

from finrl_pod.evaluate.paper_backtest import SlicedExecution
from finrl_pod.market.slicing import SlicePlan, even_profile
from finrl_pod.paper.runtime.schedule import Calendar, slice_window
from finrl_pod.paper.settings import PaperConfig
from finrl_pod.types import Panel

WHOLE_DAY = (0.0, 1.0)  # of a bar that is no session of the exchange


def sliced_execution(config: PaperConfig, panel: Panel) -> SlicedExecution | None:
    """Return the slices of a config on a panel's bars; None if its orders fill in an auction.

    A panel of daily bars has no volume within the day: the schedules of volume take it as even.
    """
    settings = config.slicing
    if settings.schedule == "none":
        return None
    name = settings.schedule
    days = [day.item() for day in panel.times.astype("datetime64[D]")]
    sessions = {session.date: session for session in Calendar().sessions(days[0], days[-1])}
    parts: list[tuple[float, ...]] = []
    for day in days:
        session = sessions.get(day)
        if session is None:
            parts.append(WHOLE_DAY)
            continue
        window, length = slice_window(session, config.schedule, settings), session.close - session.open
        start: timedelta = window.start - session.open
        parts.append(tuple((start + k * window.interval) / length for k in range(window.steps + 1)))

    def plan(steps: int) -> SlicePlan:
        return SlicePlan(name, even_profile(steps), 0.0, settings.participation, settings.urgency)

    return SlicedExecution(parts, plan, settings.fallback == "market")
