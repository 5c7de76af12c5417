"""Features that are the same for every ticker of a bar: the equal-weight market and the benchmark index.

All return [T, 1]. Log returns; volatilities per bar, not annualised; windows count the bars on which the series exists.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from finrl_pod.data.own_bars import lag, over_own_bars
from finrl_pod.data.returns import log_return, rolling_std
from finrl_pod.errors import FeatureError
from finrl_pod.types import Bools, Floats, Panel


def market_return(panel: Panel, bars: int) -> Floats:
    """Log growth over `bars` bars of a portfolio that holds the tickers in equal weights, rebalanced every bar."""

    def moved(returns: Floats) -> Floats:
        total: Floats = pd.DataFrame(returns).rolling(bars).sum().to_numpy()
        return total

    returns = _market_log_returns(panel)
    return over_own_bars(moved, np.isfinite(returns), returns)


def market_volatility(panel: Panel, bars: int) -> Floats:
    """Standard deviation (n - 1) of the last `bars` log returns of the equal-weight portfolio."""
    returns = _market_log_returns(panel)
    return over_own_bars(lambda moved: rolling_std(moved, bars), np.isfinite(returns), returns)


def breadth(panel: Panel, bars: int) -> Floats:
    """Share of the tickers that close above the mean of their last `bars` closes, of those that have so many."""

    def moved(close: Floats) -> Floats:
        mean: Floats = pd.DataFrame(close).rolling(bars).mean().to_numpy()
        return close - mean

    above = over_own_bars(moved, panel.tradable, panel.close)
    return _mean(np.where(above > 0, 1.0, 0.0), np.isfinite(above))


def index_return(panel: Panel, bars: int) -> Floats:
    """ln(index[t] / index[t - bars]) of the panel's benchmark."""
    close = _index(panel)
    return over_own_bars(lambda moved: moved - lag(moved, bars), np.isfinite(close), np.log(close))


def index_volatility(panel: Panel, bars: int) -> Floats:
    """Standard deviation (n - 1) of the last `bars` one-bar log returns of the panel's benchmark."""
    close = _index(panel)
    return over_own_bars(lambda moved: rolling_std(moved - lag(moved, 1), bars), np.isfinite(close), np.log(close))


def _market_log_returns(panel: Panel) -> Floats:
    """[T, 1] log of 1 + the mean simple return of the tickers that have one; NaN where none has."""
    returns = log_return(panel, 1)
    return np.log1p(_mean(np.expm1(returns), np.isfinite(returns)))


def _index(panel: Panel) -> Floats:
    """[T, 1] closes of the benchmark."""
    if panel.benchmark is None:
        raise FeatureError("index features need a panel with a benchmark, and this panel has none; drop them")
    return panel.benchmark.close[:, None]


def _mean(values: Floats, defined: Bools) -> Floats:
    """Mean over the defined values of each row: [T, N] -> [T, 1], NaN where a row has none."""
    count = defined.sum(1, keepdims=True)
    total = np.where(defined, values, 0.0).sum(1, keepdims=True)
    mean: Floats = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return mean
