"""Features of one ticker's closes: returns, momentum, volatility, drawdown. Windows count the ticker's own bars."""

from __future__ import annotations

import numpy as np
import pandas as pd

from finrl_pod.data.own_bars import lag, over_own_bars
from finrl_pod.types import Floats, Panel


def log_return(panel: Panel, bars: int) -> Floats:
    """ln(close[t] / close[t - bars]): [T, N]; NaN for a ticker's first `bars` bars and where it is not tradable."""
    return momentum(panel, bars, 0)


def momentum(panel: Panel, far: int, near: int) -> Floats:
    """ln(close[t - near] / close[t - far]): [T, N]; (252, 21) is 12-1 momentum (Jegadeesh and Titman, 1993)."""

    def moved(log_close: Floats) -> Floats:
        return lag(log_close, near) - lag(log_close, far)

    return over_own_bars(moved, panel.tradable, np.log(panel.close))


def volatility(panel: Panel, bars: int) -> Floats:
    """Standard deviation (n - 1) of the last `bars` one-bar log returns, per bar, not annualised: [T, N]."""

    def moved(log_close: Floats) -> Floats:
        return rolling_std(log_close - lag(log_close, 1), bars)

    return over_own_bars(moved, panel.tradable, np.log(panel.close))


def drawdown(panel: Panel, bars: int) -> Floats:
    """close[t] / (highest of the last `bars` closes, t included) - 1: [T, N], at most 0."""

    def moved(close: Floats) -> Floats:
        highest: Floats = pd.DataFrame(close).rolling(bars).max().to_numpy()
        return close / highest - 1

    return over_own_bars(moved, panel.tradable, panel.close)


def rolling_std(values: Floats, bars: int) -> Floats:
    """Standard deviation (n - 1) over the last `bars` rows of [T, N]; NaN until all of them are defined."""
    result: Floats = pd.DataFrame(values).rolling(bars).std().to_numpy()
    return result
