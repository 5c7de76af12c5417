"""Bars whose prices repeat those of the bar before: weekends, holidays and gaps that a source filled forward.

Nothing trades on them. They add zero returns, which hide reversals and momentum between the days around them, and a
year has more bars than days of trading.
"""

from __future__ import annotations

import numpy as np

from finrl_pod.prices import Bools, Floats, Panel

ROUNDING = 1e-9  # relative: filled prices may have been multiplied by a factor
MANY = 3  # tickers that repeat their prices on one bar by chance
PRICES = ("open", "high", "low", "close")


def repeated_cells(panel: Panel) -> Bools:
    """[T, N], True where a ticker's prices repeat those of its bar before, or its close alone if they are all the same.

    With a volume that is neither 0 nor repeated, it has traded.
    """
    repeated: Bools = np.zeros(panel.close.shape, dtype=bool)
    for n in range(len(panel.symbols)):  # one ticker at a time: tables of all would be copies of the prices
        bars = np.flatnonzero(panel.tradable[:, n])
        close = panel.close[bars, n]
        others = [getattr(panel, name)[bars, n] for name in PRICES if name in panel.columns]
        same = np.logical_and.reduce([_equal(x[1:], x[:-1]) for x in others])
        flat = np.logical_and.reduce([_equal(x[1:], close[1:]) for x in others]) & _equal(close[1:], close[:-1])
        cells = same | flat
        if panel.volume is not None:
            volume = panel.volume[bars, n]
            cells &= (volume[1:] == 0) | (volume[1:] == volume[:-1])
        repeated[bars[1:], n] = cells
    return repeated


def repeated_bars(panel: Panel, cells: Bools) -> Bools:
    """[T], True at bars on which every ticker that trades repeats its prices. cells: of `repeated_cells`."""
    trades = panel.tradable.any(1)
    return np.asarray(trades & (cells | ~panel.tradable).all(1))


def mostly_repeated_bars(panel: Panel, cells: Bools) -> Bools:
    """[T], True at other bars on which half of the tickers, and three or more, repeat their prices."""
    count = cells.sum(1)
    most = (count >= MANY) & (2 * count >= panel.tradable.sum(1))
    return np.asarray(most & ~repeated_bars(panel, cells))


def _equal(x: Floats, y: Floats) -> Bools:
    return np.asarray(np.abs(x - y) <= ROUNDING * np.abs(y))
