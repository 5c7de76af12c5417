"""Adjustment of open, high, low and close by the ratio of the column "adj close" to the close."""

from __future__ import annotations

import numpy as np
import pandas as pd

from finrl_pod.prices import Floats

ADJUSTED_CLOSE = "adj close"
NEIGHBOURS = 5  # bars on each side whose median ratio a bar is compared with
TOLERANCE = np.log(1.1)  # of the ratio: adjusted and raw prices are rounded
MAX_NOTES = 10


def adjusted_rows(rows: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Rows with prices scaled by adjusted close over close, without the adjusted close; and notes on wrong ratios.

    rows: columns "time", "symbol", "close", "adj close" and any of open, high, low; in any order. Dividends and splits
    move the ratio from one level to another. A bar whose ratio lies outside the levels before and after it has a wrong
    close or a wrong adjusted close: its open, high and low are scaled by the level before it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (rows[ADJUSTED_CLOSE] / rows["close"]).to_numpy(dtype=np.float64)
    others = [name for name in ("open", "high", "low") if name in rows]
    notes: list[str] = []
    used = ratio.copy()
    for row, level in _wrong_ratios(rows, ratio) if others else ():
        used[row] = level
        bar = rows.iloc[row]
        notes.append(
            f"{bar['symbol']} on {str(bar['time']).removesuffix(' 00:00:00')} has a close of {bar['close']:g} beside "
            f"an adj close of {bar[ADJUSTED_CLOSE]:g}, a ratio of {ratio[row]:.4g}, and {level:.4g} on the bars around "
            f"it: one of the two is wrong; {' and '.join(others)} were adjusted by {level:.4g}."
        )
    if len(notes) > MAX_NOTES:
        notes = [*notes[:MAX_NOTES], f"There are {len(notes) - MAX_NOTES} more bars with a wrong ratio of adj close."]
    scaled = {name: rows[name] * used for name in others}
    return rows.assign(**scaled, close=rows[ADJUSTED_CLOSE]).drop(columns=ADJUSTED_CLOSE), tuple(notes)


def _wrong_ratios(rows: pd.DataFrame, ratio: Floats) -> list[tuple[int, float]]:
    """Rows whose ratio lies outside the levels on both sides, and the level before them.

    The first and the last bar of a ticker have one side only: there a split cannot be told from a wrong price.
    """
    found: list[tuple[int, float]] = []
    codes = pd.factorize(rows["symbol"])[0]
    usable = np.isfinite(ratio) & (ratio > 0)
    order = np.lexsort((rows["time"].to_numpy(), codes))
    order = order[usable[order]]
    for own in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        logs = pd.Series(np.log(ratio[own]))
        before = logs.rolling(NEIGHBOURS, min_periods=1).median().shift(1).to_numpy()
        after = logs[::-1].rolling(NEIGHBOURS, min_periods=1).median().shift(1)[::-1].to_numpy()
        outside = (logs > np.maximum(before, after) + TOLERANCE) | (logs < np.minimum(before, after) - TOLERANCE)
        found += [(int(own[i]), float(np.exp(before[i]))) for i in np.flatnonzero(outside)]
    return found
