"""Recognition of the bars of one instrument by their prices, whatever the columns are called."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from finrl_pod.data.sources.layouts import Meaning
from finrl_pod.prices import Floats

MAX_COLUMNS = 8  # with more, a table has closes of tickers
MIN_BARS = 10
ROUNDING = 1e-4  # relative, of prices that were multiplied by a factor
SWAPS = 0.1  # share of the bars that close below their open, and of those above it, at least
RANGE = 4.0  # from low to high, in moves from bar to bar, at most: prices of tickers drift apart
VOLUME_SCALE = 20.0  # of volumes over prices, at least


def bar_columns(prices: Mapping[str, Floats]) -> dict[str, Meaning]:
    """What columns of the bars of one instrument hold, by their names; empty for closes of tickers.

    prices: [T] of each column, in order of time, NaN where blank. Four of them are open, high, low and close if every
    bar has the others between two of them, and these two are as close together as closes of one instrument are from
    bar to bar. One more column may be the volume.
    """
    if len(prices) > MAX_COLUMNS:
        return {}
    for names in combinations(prices, 4):
        table = np.stack([prices[name] for name in names], 1)
        table = table[(table > 0).all(1)]
        if len(table) < MIN_BARS:
            continue
        low, first, second, high = np.argsort(np.median(table, 0), kind="stable")
        if not _are_bars(*(table[:, i] for i in (low, first, second, high))):
            continue
        # The open of a bar is closer to the close before it than the close is to the open before it.
        gaps = [np.abs(np.log(table[1:, i] / table[:-1, j])).sum() for i, j in ((first, second), (second, first))]
        opens, closes = (first, second) if gaps[0] <= gaps[1] else (second, first)
        found: dict[str, Meaning] = {
            names[opens]: "open",
            names[high]: "high",
            names[low]: "low",
            names[closes]: "close",
        }
        scale = VOLUME_SCALE * np.median(table)
        volumes = [name for name in prices if name not in names and np.nanmedian(prices[name]) > scale]
        return found | ({volumes[0]: "volume"} if len(volumes) == 1 else {})
    return {}


def _are_bars(low: Floats, first: Floats, second: Floats, high: Floats) -> bool:
    """Whether prices [T] are lows, opens and closes in either order, and highs."""
    inner_low, inner_high = np.minimum(first, second), np.maximum(first, second)
    if (low > inner_low * (1 + ROUNDING)).any() or (high < inner_high * (1 - ROUNDING)).any():
        return False
    swaps = min(float((first < second).mean()), float((first > second).mean()))
    moves = np.abs(np.diff(np.log([first, second]), axis=1)).mean()
    return bool(swaps >= SWAPS and np.log(high / low).mean() <= RANGE * moves)
