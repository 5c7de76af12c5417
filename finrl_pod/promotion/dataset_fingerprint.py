"""Fingerprints of data sets: recognise the same market even if days, symbols or corrections differ.

A fingerprint has the symbols and an index of daily levels, as synthetic panels share symbols. The test years of the
built-in panels were used to build finrl_pod: the first look of a user at them is not the first.
"""

from __future__ import annotations

import functools
from collections.abc import Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finrl_pod.data.store import BUILT_IN, Store
from finrl_pod.prices import Floats, Panel, Times
from finrl_pod.settings.run import BUILT_IN_SPLITS

MIN_SHARED_SYMBOLS = 0.5  # of the smaller data set
MIN_SHARED_PERIODS = 10  # days, weeks or months
PERIODS = ("day", "week", "month")
EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday, counted from Monday
MAX_LOG_RETURN = 0.1  # per bar: larger moves may be splits
BLOCK_BARS = 4_096  # bars whose returns are computed at a time
MIN_CORRELATION = 0.9  # of the indices; disjoint halves of a universe may reach it, other markets do not
DEVELOPMENT_SUBJECT = "development of finrl_pod"  # of the look in the registry
DEVELOPMENT_DATE = "2026-11-26T00:00:00+00:00"  # when the default settings were chosen


@dataclass(frozen=True, eq=False)
class DatasetFingerprint:
    """Symbols and an index of a data set.

    symbols: names in capitals. days: [D] datetime64[D], strictly increasing. levels: [D] float64, log of the index: the
    cumulative mean of the symbols' log returns, each clipped to `MAX_LOG_RETURN`.
    """

    symbols: frozenset[str]
    days: Times
    levels: Floats


def dataset_fingerprint(panel: Panel) -> DatasetFingerprint:
    """Fingerprint of a panel, from its closes."""
    levels = np.concatenate([[0.0], np.cumsum(_mean_returns(panel))])
    days = panel.times.astype("datetime64[D]")
    last = np.append(days[1:] != days[:-1], True)  # bar of each day
    return DatasetFingerprint(frozenset(symbol.upper() for symbol in panel.symbols), days[last], levels[last])


def _mean_returns(panel: Panel) -> Floats:
    """[T-1] mean of the symbols' clipped log returns, a few thousand bars at a time."""
    means = np.empty(len(panel.times) - 1)
    for first in range(0, len(means), BLOCK_BARS):
        rows = slice(first, first + BLOCK_BARS + 1)  # a return needs the bar before
        prices = np.where(panel.tradable[rows], panel.close[rows], np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            returns = np.diff(np.log(prices), axis=0)
        is_known = np.isfinite(returns)
        total = np.where(is_known, np.clip(returns, -MAX_LOG_RETURN, MAX_LOG_RETURN), 0.0).sum(1)
        means[first : first + BLOCK_BARS] = total / np.maximum(is_known.sum(1), 1)
    return means


def same_market(first: DatasetFingerprint, second: DatasetFingerprint) -> bool:
    """Whether two data sets show the same market: at least half of the symbols overlap and the indices are correlated.

    Indices are compared by day, week and month, shifted by one period either way: weekly bars may be dated by their
    first or by their last day.
    """
    if not shares_symbols(first.symbols, second.symbols):
        return False
    return any(
        _correlation(_period_levels(first, period), _period_levels(second, period), shift) >= MIN_CORRELATION
        for period in PERIODS
        for shift in (0, -1, 1)
    )


def shares_symbols(first: Set[str], second: Set[str]) -> bool:
    """Whether two universes share at least half of the symbols of the smaller one."""
    return len(first & second) >= MIN_SHARED_SYMBOLS * min(len(first), len(second))


def _period_levels(fingerprint: DatasetFingerprint, period: str) -> tuple[NDArray[np.int64], Floats]:
    """Number of each day, week or month in a fingerprint, and the last level in it."""
    number = fingerprint.days.astype("datetime64[M]" if period == "month" else "datetime64[D]").astype(np.int64)
    if period == "week":
        number = (number + EPOCH_WEEKDAY) // 7
    last = np.append(number[1:] != number[:-1], True)
    return number[last], fingerprint.levels[last]


def _correlation(
    first: tuple[NDArray[np.int64], Floats], second: tuple[NDArray[np.int64], Floats], shift: int
) -> float:
    """Correlation of changes between shared periods; -1 if there are too few or an index is constant."""
    periods, first_rows, second_rows = np.intersect1d(
        first[0], second[0] + shift, assume_unique=True, return_indices=True
    )
    if len(periods) <= MIN_SHARED_PERIODS:
        return -1.0
    a = np.diff(first[1][first_rows])
    b = np.diff(second[1][second_rows])
    return -1.0 if a.std() == 0 or b.std() == 0 else float(np.corrcoef(a, b)[0, 1])


# ---------------------------------------------------------------------- development of finrl_pod


def is_demonstration(panel: Panel) -> bool:
    """Whether prices belong to a built-in panel, or to some of its symbols."""
    return panel.name in BUILT_IN and set(panel.symbols) <= set(Store().show(panel.name).symbols)


def development_period(panel: Panel, first: str, last: str) -> tuple[str, str] | None:
    """First and last date of the test years that were looked at to build finrl_pod; None if a period misses them.

    first, last: ISO text of the period. The prices belong to a built-in panel or show the same market.
    """
    for name in BUILT_IN:
        begin, end = BUILT_IN_SPLITS[name].test
        if first[:10] <= end and last[:10] >= begin and _is_market_of(panel, name):
            return begin, end
    return None


def _is_market_of(panel: Panel, name: str) -> bool:
    if panel.name == name and is_demonstration(panel):
        return True
    symbols = {symbol.upper() for symbol in panel.symbols}
    built_in_symbols = {symbol.upper() for symbol in Store().show(name).symbols}
    if not shares_symbols(symbols, built_in_symbols):
        return False
    return same_market(dataset_fingerprint(panel), _built_in_fingerprint(name))


@functools.cache
def _built_in_fingerprint(name: str) -> DatasetFingerprint:
    return dataset_fingerprint(BUILT_IN[name]())
