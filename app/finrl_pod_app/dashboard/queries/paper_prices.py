"""Prices of a symbol as the daemon used them, with own fills and shares, in the shares of today."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from finrl_pod.paper.domain.records import ActionKind
from finrl_pod.types import Floats
from finrl_pod_app.dashboard.queries.paper_account import booked_changes
from finrl_pod_app.dashboard.queries.paper_journal import CACHED_JOURNALS, Journal
from finrl_pod_app.dashboard.queries.paper_period import Period, in_period
from finrl_pod_app.dashboard.theme import EXCHANGE_ZONE

SPLITS = (ActionKind.SPLIT, ActionKind.STOCK_DIVIDEND)


@dataclass(frozen=True, eq=False)
class PriceHistory:
    """Prices of one symbol in a period, adjusted for later splits.

    closes: session (ISO date), price, shares (held by all strategies at that time). fills: time, day (ISO date at the
    exchange), side, quantity, price, strategy.
    """

    symbol: str
    closes: pd.DataFrame
    fills: pd.DataFrame


def traded_symbols(journal: Journal) -> list[str]:
    """Symbols of the config and of all fills."""
    configured = journal.config.symbols if journal.config is not None else ()
    return sorted({*configured, *journal.fills.symbol})


@lru_cache(maxsize=CACHED_JOURNALS)
def price_history(journal: Journal, period: Period, symbol: str) -> PriceHistory:
    """Closes and own fills of a symbol in a period. The close before it is included."""
    part = in_period(journal, period)
    rows = journal.close_history[journal.close_history.symbol == symbol]
    splits = _splits(journal, symbol)
    changes = booked_changes(journal)
    changes = changes[(changes.symbol == symbol) & ~(changes.kind.isin(SPLITS) & changes["at"].isin(splits["at"]))]
    # Whole days: a decision within a session records the close of each bar.
    closes = rows.assign(session=rows.session.str[:10]).groupby("session", sort=True)[["at", "price"]].last()
    held = np.concatenate([[0.0], (changes.shares / _factors(splits, changes["at"])).cumsum()])
    closes["shares"] = held[changes["at"].searchsorted(closes["at"], side="right")]
    closes["price"] *= _factors(splits, closes["at"])
    if len(part.equity):
        closes = closes[closes.index >= part.equity.session.iloc[0]]
    fills = part.fills[part.fills.symbol == symbol]
    factors = _factors(splits, fills["at"])
    fills = fills.assign(
        day=fills.time.dt.tz_convert(EXCHANGE_ZONE).dt.strftime("%Y-%m-%d"),
        price=fills.price * factors,
        quantity=fills.quantity / factors,
    )
    return PriceHistory(
        symbol,
        closes.reset_index()[["session", "price", "shares"]],
        fills[["time", "day", "side", "quantity", "price", "strategy"]].reset_index(drop=True),
    )


def _splits(journal: Journal, symbol: str) -> pd.DataFrame:
    """Splits of a symbol: at, factor of earlier prices. The journal writes the last close again, per new share."""
    rows = journal.close_history[journal.close_history.symbol == symbol]
    actions = journal.actions
    times = actions[(actions.symbol == symbol) & actions.kind.isin(SPLITS)]["at"]
    is_again = (rows.session == rows.session.shift()) & rows["at"].isin(times)
    return pd.DataFrame({"at": rows["at"], "factor": rows.price / rows.price.shift()})[is_again]


def _factors(splits: pd.DataFrame, times: pd.Series[pd.Timestamp]) -> Floats:
    """Product of the factors of the splits after each time."""
    factors = np.ones(len(times))
    for at, factor in zip(splits["at"], splits.factor.to_numpy(float), strict=True):
        factors *= np.where(times < at, factor, 1.0)
    return factors
