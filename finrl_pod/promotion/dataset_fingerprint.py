"""Whether two data sets show the same market on the same days, though one has a day, a symbol or a correction more.

Whoever looked at one has seen the other, so that looks at both count together. Names alone do not tell: made-up panels
share theirs. What tells is an index of each data set, its level on every day; those of the same market move together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finrl_pod.types import Floats, Panel, Times

SHARED_SYMBOLS = 0.5  # of the smaller set
SHARED = 10  # days, weeks or months at least
PERIODS = ("day", "week", "month")
THURSDAY = 3  # the first of January 1970, counted from Monday
LARGEST = 0.1  # logarithmic return a bar
CORRELATION = 0.9  # of the two indices; unlike halves of one universe reach it, other markets of the same days do not


@dataclass(frozen=True, eq=False)
class DatasetFingerprint:
    """What is kept of a data set.

    symbols: in capitals. days: [D] datetime64[D], strictly increasing. levels: [D] float64, logarithm of an index on
    these days: the sum of the symbols' mean returns, each up to LARGEST, as a split is no return.
    """

    symbols: frozenset[str]
    days: Times
    levels: Floats


def dataset_fingerprint(panel: Panel) -> DatasetFingerprint:
    """The dataset_fingerprint of a panel, by its closes."""
    prices = np.where(panel.tradable, panel.close, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        returns = np.diff(np.log(prices), axis=0)
    known = np.isfinite(returns)
    total = np.where(known, np.clip(returns, -LARGEST, LARGEST), 0.0).sum(1)
    levels = np.concatenate([[0.0], np.cumsum(total / np.maximum(known.sum(1), 1))])
    days = panel.times.astype("datetime64[D]")
    last = np.append(days[1:] != days[:-1], True)  # bar of each day
    return DatasetFingerprint(frozenset(symbol.upper() for symbol in panel.symbols), days[last], levels[last])


def same_market(one: DatasetFingerprint, other: DatasetFingerprint) -> bool:
    """Do they share half of the smaller one's symbols, and do their indices move together on the days they share, or
    by the week or month, a label more or less: weekly bars are dated by their first day as well as by their last."""
    if len(one.symbols & other.symbols) < SHARED_SYMBOLS * min(len(one.symbols), len(other.symbols)):
        return False
    return any(
        _correlation(_last_of(one, period), _last_of(other, period), shift) >= CORRELATION
        for period in PERIODS
        for shift in (0, -1, 1)
    )


def _last_of(kept: DatasetFingerprint, period: str) -> tuple[NDArray[np.int64], Floats]:
    """Number of each day, week or month that the dataset_fingerprint has, and its last level in it."""
    number = kept.days.astype("datetime64[M]" if period == "month" else "datetime64[D]").astype(np.int64)
    if period == "week":
        number = (number + THURSDAY) // 7
    last = np.append(number[1:] != number[:-1], True)
    return number[last], kept.levels[last]


def _correlation(one: tuple[NDArray[np.int64], Floats], other: tuple[NDArray[np.int64], Floats], shift: int) -> float:
    """Of the moves between the periods that both have; -1 where there are too few, or a market stands still."""
    shared, here, there = np.intersect1d(one[0], other[0] + shift, assume_unique=True, return_indices=True)
    if len(shared) <= SHARED:
        return -1.0
    a, b = np.diff(one[1][here]), np.diff(other[1][there])
    return -1.0 if a.std() == 0 or b.std() == 0 else float(np.corrcoef(a, b)[0, 1])
