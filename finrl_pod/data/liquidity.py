"""Inputs of trading costs: volume and spread of the bar in which a decision fills, and volatility."""

from __future__ import annotations

import numpy as np

from finrl_pod.data.blocks import over_columns
from finrl_pod.data.price_features import over_own_bars
from finrl_pod.types import Bools, Floats, Panel

LOOKBACK = 21  # returns in the estimate
MIN_RETURNS = 5  # returns needed for an estimate
DEFAULT_VOLATILITY = 0.02  # per bar, until there is an estimate


def fill_volumes(panel: Panel, fillable: Bools, delisted: Bools, fill: str) -> Floats | None:
    """[T, N] shares traded in the bar where the decision of t fills; 0 if it cannot fill, inf for a delisting payout.

    None if the panel has no volumes.
    """
    if panel.volume is None:
        return None
    volume = np.zeros_like(panel.volume)
    if fill == "same_close":
        volume[:] = panel.volume
    else:
        volume[:-1] = panel.volume[1:]
    volume = np.where(fillable, volume, 0.0)
    return np.where(delisted & ~fillable, np.inf, volume)


def fill_half_spreads(panel: Panel, fillable: Bools, fill: str) -> Floats | None:
    """[T, N] half of the quoted spread in the bar where the decision of t fills, as a fraction of the price.

    NaN where it can fill but the spread is unknown; where it cannot fill, the last known one, 0 before the first. None
    if the panel has no spreads.
    """
    if panel.spread is None:
        return None

    def of_columns(spread: Floats, fillable: Bools) -> Floats:
        half = spread / 2
        bar = np.where(np.isnan(half), -1, np.arange(len(half))[:, None])
        latest = np.maximum.accumulate(bar, axis=0)
        known: Floats = np.where(latest >= 0, np.take_along_axis(half, np.maximum(latest, 0), axis=0), 0.0)
        if fill == "same_close":
            return np.where(fillable, half, known)
        np.copyto(known[:-1], half[1:], where=fillable[:-1])
        return known

    return over_columns(of_columns, panel.spread, fillable)


def trailing_volatility(close: Floats, tradable: Bools) -> Floats:
    """[T, N] standard deviation (n - 1) of a ticker's last 21 log returns known at t.

    `DEFAULT_VOLATILITY` before there are five.

    close: [T, N], > 0 where tradable [T, N]. Returns are taken between consecutive bars of the ticker, so that
    gaps and bars before its start do not count as zero returns; in gaps and after the end
    the last estimate is forward-filled.
    """
    import pandas as pd

    def rolling(own: Floats) -> Floats:
        returns = pd.DataFrame(np.diff(np.log(own), axis=0, prepend=np.nan))
        return returns.rolling(LOOKBACK, min_periods=MIN_RETURNS).std(ddof=1).to_numpy()

    estimates: Floats = (
        pd.DataFrame(over_own_bars(rolling, tradable, close)).ffill().fillna(DEFAULT_VOLATILITY).to_numpy(copy=True)
    )
    return estimates
