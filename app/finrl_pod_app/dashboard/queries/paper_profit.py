"""Profit and loss of a paper account by session, strategy and symbol. Deposits and withdrawals are no profit.

The profit of a part (a symbol that a strategy trades) in a session is the change in value of its shares, plus the cash
from its trades and dividends, less its fees. The profits of all parts add up to the change in equity less the flows.

Returns are time-weighted: the profit of a session over the equity at its start, compounded. The contribution of a part
in a period is the sum of its daily ones, profit over the equity at the start of the day, each times the growth of the
account from the start of the period to that day. The contributions of all parts add up to the return of the period.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal

import numpy as np
import pandas as pd

from finrl_pod.paper.domain.records import ActionKind
from finrl_pod.types import Floats
from finrl_pod_app.dashboard.queries.paper_account import booked_changes
from finrl_pod_app.dashboard.queries.paper_journal import CACHED_JOURNALS, Journal
from finrl_pod_app.dashboard.queries.paper_period import Period, first_session

AMOUNTS = ["profit", "prices", "dividends", "costs"]
CENT = 0.005
UNASSIGNED = "account"  # part of the profit that belongs to no strategy or symbol


class Interval(StrEnum):
    """How sessions are summed. Weeks begin on Mondays."""

    DAY = "Day"
    WEEK = "Week"
    MONTH = "Month"


@dataclass(frozen=True, eq=False)
class ProfitAndLoss:
    """Profit of the sessions of a period, oldest first. Amounts in dollars; costs are negative.

    sessions: session (ISO date), start (equity at the start), end, flow (deposits less withdrawals), profit, prices,
    dividends, costs, unpaid (dividends that the account was not credited with, no part of the profit), return, growth
    (of 1 from the start of the period to the start of the session).
    parts: session, strategy, symbol, profit, prices, dividends, costs, start, growth; only rows with an amount.
    """

    sessions: pd.DataFrame
    parts: pd.DataFrame

    @property
    def total_return(self) -> float:
        """Time-weighted return of the period."""
        return compound(self.sessions["return"])


def compound(returns: pd.Series[float]) -> float:
    """Compound return of consecutive returns."""
    return float(np.prod(1.0 + returns.to_numpy(float))) - 1.0


@lru_cache(maxsize=CACHED_JOURNALS)
def profit_and_loss(journal: Journal, period: Period = Period.ALL) -> ProfitAndLoss:
    """Profit of each session in a period, and of each strategy and symbol in it. Empty before the first session."""
    marks = journal.equity
    if marks.empty:
        columns = ["session", "start", "end", "flow", *AMOUNTS, "unpaid", "return", "growth"]
        return ProfitAndLoss(
            pd.DataFrame(columns=columns), pd.DataFrame(columns=["session", "strategy", "symbol", *AMOUNTS])
        )
    first = first_session(marks.session, period)
    sessions = _sessions(journal)
    sessions["growth"] = (1 + sessions["return"]).where(sessions.index >= first, 1.0).cumprod().shift(fill_value=1.0)
    parts = _parts(journal, sessions)
    for name in ("prices", "dividends", "costs"):
        sessions[name] = parts.groupby("t")[name].sum().reindex(sessions.index, fill_value=0.0)
    parts = parts[parts.t >= first].join(sessions[["session", "start", "growth"]], on="t")
    return ProfitAndLoss(sessions[first:].reset_index(drop=True), parts.drop(columns="t").reset_index(drop=True))


def profit_by_interval(profit: ProfitAndLoss, interval: Interval) -> pd.DataFrame:
    """One row per day, week or month, oldest first: label, profit, return, prices, dividends, costs, flow, equity.

    label: ISO date of the session, of the Monday, or the month as YYYY-MM. equity: dollars at the end.
    """
    sessions = profit.sessions
    groups = sessions.groupby(interval_labels(sessions.session, interval), sort=True)
    frame = groups[[*AMOUNTS, "flow"]].sum()
    frame["return"] = groups["return"].apply(compound)
    frame["equity"] = groups["end"].last()
    return frame.rename_axis("label").reset_index()


def interval_labels(sessions: pd.Series[str], interval: Interval) -> pd.Series[str]:
    """Label of the day, week or month of each session."""
    if interval is Interval.DAY:
        return sessions
    if interval is Interval.MONTH:
        return sessions.str[:7]
    days = pd.to_datetime(sessions)
    return (days - pd.to_timedelta(days.dt.day_of_week, unit="D")).dt.strftime("%Y-%m-%d")


def profit_by_part(profit: ProfitAndLoss, column: Literal["strategy", "symbol"]) -> pd.DataFrame:
    """One row per strategy or symbol, the largest profit first: its name, profit, contribution and amounts.

    contribution: share in the return of the period; all rows add up to it.
    """
    parts = profit.parts
    frame = (
        parts.assign(contribution=contributions_of(parts))
        .groupby(column)[["contribution", *AMOUNTS]]
        .sum()
        .reset_index()
    )
    return frame.sort_values(["profit", column], ascending=[False, True], ignore_index=True)


def contributions_of(parts: pd.DataFrame) -> pd.Series[float]:
    """Contribution of each row of `ProfitAndLoss.parts` to the return of its period."""
    return (parts.profit / parts.start * parts.growth).where(parts.start > 0, 0.0)


def _sessions(journal: Journal) -> pd.DataFrame:
    """Equity at start and end of each session in the dollars of that day, with flow, profit, unpaid and return."""
    marks = journal.equity
    frame = pd.DataFrame({"session": marks.session, "end": marks.recorded, "flow": marks.flow})
    frame.insert(1, "start", frame.end.shift(fill_value=journal.started))
    frame["profit"] = frame.end - frame.start - frame.flow
    frame["return"] = (frame.profit / frame.start).where(frame.start > 0, 0.0)
    t = _session_of(journal, journal.actions["at"])
    frame["unpaid"] = journal.actions.unpaid.groupby(t).sum().reindex(frame.index, fill_value=0.0)
    return frame


def _parts(journal: Journal, sessions: pd.DataFrame) -> pd.DataFrame:
    """Amounts of each strategy and symbol in each session: t, strategy, symbol, prices, dividends, costs, profit.

    What the books do not explain, such as interest, is a row of `UNASSIGNED`.
    """
    changes = booked_changes(journal)
    changes = changes[changes.kind != ActionKind.TRANSFER]
    t = _session_of(journal, changes["at"])
    changes = changes.assign(t=t)[t < len(sessions)]
    parts = changes[["strategy", "symbol"]].drop_duplicates().sort_values(["strategy", "symbol"], ignore_index=True)
    columns = {part: n for n, part in enumerate(zip(parts.strategy, parts.symbol, strict=True))}
    k = [columns[part] for part in zip(changes.strategy, changes.symbol, strict=True)]
    places = (changes.t.to_numpy(int), np.array(k, dtype=int))

    def sums(amounts: pd.Series[float]) -> Floats:
        table = np.zeros((len(sessions), len(parts)))  # [T, K]
        np.add.at(table, places, amounts.to_numpy(float))
        return table

    is_dividend = changes.kind == ActionKind.CASH_DIVIDEND
    shares = sums(changes.shares).cumsum(axis=0)
    values = shares * _closes(journal, len(sessions), list(parts.symbol))
    dividends = sums(changes.cash.where(is_dividend, 0.0))
    costs = 0.0 - sums(changes.fee)  # -x would show no fees as -$0.00
    prices = np.diff(values, axis=0, prepend=0.0) + sums(changes.cash.where(~is_dividend, 0.0))
    frame = pd.DataFrame(
        {
            "t": np.repeat(np.arange(len(sessions)), len(parts)),
            "strategy": np.tile(parts.strategy.to_numpy(object), len(sessions)),
            "symbol": np.tile(parts.symbol.to_numpy(object), len(sessions)),
            "prices": prices.ravel(),
            "dividends": dividends.ravel(),
            "costs": costs.ravel(),
        }
    )
    unexplained = sessions.profit.to_numpy() - (prices + dividends + costs).sum(axis=1)
    rest = pd.DataFrame({"t": np.arange(len(sessions)), "strategy": UNASSIGNED, "symbol": UNASSIGNED})
    rest["prices"] = unexplained
    frame = pd.concat([frame, rest[np.abs(unexplained) >= CENT].assign(dividends=0.0, costs=0.0)], ignore_index=True)
    frame["profit"] = frame.prices + frame.dividends + frame.costs
    rows: pd.DataFrame = frame[(frame[AMOUNTS] != 0.0).any(axis=1)]
    return rows


def _session_of(journal: Journal, times: pd.Series[pd.Timestamp]) -> pd.Series[int]:
    """Place of the session whose equity is the first to include what was written at each time."""
    return pd.Series(journal.equity["at"].searchsorted(times), index=times.index, dtype=int)


def _closes(journal: Journal, count: int, symbols: list[str]) -> Floats:
    """Close [T, K] that valued each symbol in the equity of each session, 0 before its first close."""
    history = journal.close_history
    t = _session_of(journal, history["at"])
    # A decision within a session records the closes before it and its own at once, after the same equity.
    marks = journal.equity.session
    later = history.session.str[:10] > t.map(marks).fillna("9")
    last = history.assign(t=t + later).groupby(["t", "symbol"]).price.last().unstack("symbol")
    return last.reindex(range(count)).ffill().reindex(columns=symbols).fillna(0.0).to_numpy(float)
