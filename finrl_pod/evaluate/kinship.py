"""Whether two data sets show the same market on the same days, though one has a day, a symbol or a correction more.

Whoever looked at one has seen the other, so that looks at both count together. Names alone do not tell: made-up panels
share theirs. What tells is an index of each data set, its level on every day; those of the same market move together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finrl_pod.types import Floats, Panel, Times

SHARED_SYMBOLS = 0.5  # of the smaller set
SHARED_DAYS = 20
LARGEST = 0.1  # logarithmic return a bar
CORRELATION = 0.9  # of the two indices; unlike halves of one universe reach it, other markets of the same days do not


@dataclass(frozen=True, eq=False)
class Outline:
    """What is kept of a data set. days: [D] datetime64[D], strictly increasing. levels: [D] float64, logarithm of an
    index on these days: the sum of the symbols' mean returns, each up to LARGEST, as a split is no return."""

    symbols: frozenset[str]
    days: Times
    levels: Floats


def outline(panel: Panel) -> Outline:
    """The outline of a panel, by its closes."""
    prices = np.where(panel.tradable, panel.close, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        returns = np.diff(np.log(prices), axis=0)
    known = np.isfinite(returns)
    total = np.where(known, np.clip(returns, -LARGEST, LARGEST), 0.0).sum(1)
    levels = np.concatenate([[0.0], np.cumsum(total / np.maximum(known.sum(1), 1))])
    days = panel.times.astype("datetime64[D]")
    last = np.append(days[1:] != days[:-1], True)  # bar of each day
    return Outline(frozenset(panel.symbols), days[last], levels[last])


def akin(one: Outline, other: Outline) -> bool:
    """Do they share half of the smaller one's symbols, and do their indices move together on the days they share?"""
    if len(one.symbols & other.symbols) < SHARED_SYMBOLS * min(len(one.symbols), len(other.symbols)):
        return False
    days, here, there = np.intersect1d(one.days, other.days, assume_unique=True, return_indices=True)
    if len(days) <= SHARED_DAYS:
        return False
    a, b = np.diff(one.levels[here]), np.diff(other.levels[there])
    if a.std() == 0 or b.std() == 0:  # a market that stands still is like any other
        return False
    return bool(np.corrcoef(a, b)[0, 1] >= CORRELATION)
