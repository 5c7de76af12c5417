"""Periods of a paper account, and its journal restricted to one."""

from __future__ import annotations

import dataclasses
from datetime import date, timedelta
from enum import StrEnum
from functools import lru_cache

import pandas as pd

from finrl_pod_app.dashboard.queries.paper_journal import CACHED_JOURNALS, Journal


class Period(StrEnum):
    """A period that ends with the last session of the account."""

    DAY = "1D"
    WEEK = "1W"
    MONTH = "1M"
    YEAR_TO_DATE = "YTD"
    ALL = "All"


def first_session(sessions: pd.Series[str], period: Period) -> int:
    """Place of the first session of a period. sessions: ISO dates, not empty."""
    last = date.fromisoformat(sessions.iloc[-1])
    if period is Period.ALL:
        return 0
    if period is Period.DAY:
        return len(sessions) - 1
    if period is Period.WEEK:
        before = last - timedelta(days=7)
    elif period is Period.MONTH:
        before = (pd.Timestamp(last) - pd.DateOffset(months=1)).date()
    else:
        before = date(last.year - 1, 12, 31)
    return int((sessions <= before.isoformat()).sum())


@lru_cache(maxsize=CACHED_JOURNALS)
def in_period(journal: Journal, period: Period) -> Journal:
    """The journal with the fills, orders, decisions, commands, alerts and risk states of a period.

    Its equity starts with the session before the period: its capital. Settings, cash, closes, positions and whatever
    else describes the account as it is now are unchanged.
    """
    if journal.equity.empty or (first := first_session(journal.equity.session, period)) == 0:
        return journal
    marks = journal.equity[first - 1 :].reset_index(drop=True)
    start = marks["at"].iloc[0]
    frames = {
        name: frame[frame["at"] > start].reset_index(drop=True)
        for name in ("fills", "orders", "decisions", "commands", "alerts", "risk", "actions")
        for frame in (getattr(journal, name),)
    }
    return dataclasses.replace(journal, equity=marks, capital=float(marks.equity.iloc[0]), **frames)


def period_text(journal: Journal, period: Period) -> str:
    """First and last session of a period, or that there is none yet."""
    sessions = journal.equity.session
    if sessions.empty:
        return "no session yet"
    first, last = sessions.iloc[first_session(sessions, period)], sessions.iloc[-1]
    return str(last) if first == last else f"{first} to {last}"
