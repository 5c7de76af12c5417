"""Features of the market model: a ticker's log return is alpha + beta * market return + residual.

Sharpe (1963), "A simplified model for portfolio analysis". The market is the equal-weight portfolio of the panel,
rebalanced every bar. Windows count a ticker's own bars; over a gap, the market's return is that of the same span.
All features are [T, N] float64, NaN where undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from finrl_pod.data.price_features import lag, market_log_returns, over_own_bars
from finrl_pod.types import Floats, Panel

# A residual variance below this fraction of the ticker's own is rounding error: the ticker is the market.
_RELATIVE_RESIDUAL = 1e-10


class _Fit(NamedTuple):
    """Least-squares fit over the last `bars` returns: beta and standard deviation (n - 2) of the residuals, [T, N]."""

    beta: Floats
    residual_std: Floats


def beta(panel: Panel, bars: int) -> Floats:
    """Least-squares slope of the last `bars` returns on those of the market, as in Fama and MacBeth (1973).

    NaN where the market did not move.
    """
    return _over_own_bars(panel, lambda price, market: _fit(price, market, bars).beta)


def idiosyncratic_volatility(panel: Panel, bars: int) -> Floats:
    """Standard deviation (n - 2) of the residuals of the last `bars` returns, per bar.

    Ang, Hodrick, Xing and Zhang (2006), with the market model instead of three factors.
    """
    return _over_own_bars(panel, lambda price, market: _fit(price, market, bars).residual_std)


def residual_momentum(panel: Panel, far: int, near: int) -> Floats:
    """Return in excess of beta times the market's, from bar t - far to t - near, over the residuals' volatility.

    Blitz, Huij and Martens (2011), "Residual momentum", with the market model over the last `far` returns instead of
    three factors over 36 months. The intercept is part of the residual return: the residuals of a fit with an intercept
    add up to zero over its window. 0 where the ticker is the market.
    """

    def moved(price: Floats, market: Floats) -> Floats:
        fit = _fit(price, market, far)
        excess = (lag(price, near) - lag(price, far)) - fit.beta * (lag(market, near) - lag(market, far))
        zero = np.where(np.isfinite(excess), 0.0, np.nan)
        return np.divide(excess, fit.residual_std, out=zero, where=fit.residual_std > 0)

    return _over_own_bars(panel, moved)


def _over_own_bars(panel: Panel, function: Callable[[Floats, Floats], Floats]) -> Floats:
    """Apply a function of log closes and of the market's log level, [T, N] each, to every ticker's own bars."""
    level = np.cumsum(np.nan_to_num(market_log_returns(panel)), axis=0)  # [T, 1]
    return over_own_bars(function, panel.tradable, np.log(panel.close), np.broadcast_to(level, panel.close.shape))


def _fit(price: Floats, market: Floats, bars: int) -> _Fit:
    """Fit to the last `bars` differences of log levels [T, N]; NaN until all are defined."""

    def mean(values: Floats) -> Floats:
        result: Floats = pd.DataFrame(values).rolling(bars).mean().to_numpy()
        return result

    returns, of_market = price - lag(price, 1), market - lag(market, 1)
    covariance = mean(returns * of_market) - mean(returns) * mean(of_market)
    variance, of_market_variance = _variance(returns, bars), _variance(of_market, bars)
    slope = np.divide(
        covariance, of_market_variance, out=np.full_like(covariance, np.nan), where=of_market_variance > 0
    )
    residual = variance - slope * covariance
    residual = np.where(residual > _RELATIVE_RESIDUAL * variance, residual, np.where(np.isnan(residual), np.nan, 0.0))
    return _Fit(slope, np.sqrt(residual * bars / (bars - 2)))


def _variance(values: Floats, bars: int) -> Floats:
    """Variance (n) over the last `bars` rows of [T, N]."""
    result: Floats = pd.DataFrame(values).rolling(bars).var(ddof=0).to_numpy()
    return result
