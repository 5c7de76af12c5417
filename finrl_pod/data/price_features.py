"""Features of prices: returns, momentum, volatility, ranks, the market model and FinRL's technical indicators.

Per-ticker features are [T, N], features of the market or the index [T, 1]; float64, NaN where undefined. Returns are
log returns, volatilities are per bar (not annualised), and windows count a series' own bars, skipping gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from finrl_pod.data.blocks import over_columns, over_rows
from finrl_pod.errors import FeatureError, SetupError
from finrl_pod.types import Bools, Floats, Panel

# A cross-sectional spread below this fraction of the largest value is rounding error.
_RELATIVE_SPREAD = 1e-12
# A residual variance below this fraction of the variance of a ticker is rounding error: the ticker is the market.
_RELATIVE_RESIDUAL = 1e-10


def over_own_bars(function: Callable[..., Floats], valid: Bools, *columns: Floats) -> Floats:
    """Apply `function` to valid rows of each column as if they were consecutive: windows skip gaps.

    valid: [T, N] bool. columns: [T, N] float64 each. function: receives the columns with valid rows moved to the top,
    [T, N] with NaN below, and returns [T, N]. Returns [T, N], NaN where `valid` is False. Row i of a moved column is
    the i-th bar of the ticker regardless of later ones, so causal functions stay causal. It computes each column by
    itself and is called with a few columns at a time, so that its temporary arrays stay small on long tables.
    """

    def of_block(valid: Bools, *columns: Floats) -> Floats:
        if valid.all():
            return function(*columns)
        order = np.argsort(~valid, axis=0, kind="stable")
        top_valid = np.take_along_axis(valid, order, axis=0)
        top_rows = (np.where(top_valid, np.take_along_axis(column, order, axis=0), np.nan) for column in columns)
        result = np.full(valid.shape, np.nan)
        np.put_along_axis(result, order, function(*top_rows), axis=0)
        result[~valid] = np.nan
        return result

    return over_columns(of_block, valid, *columns)


def lag(values: Floats, bars: int) -> Floats:
    """Shift values [T, ...] down by `bars` rows; the first ones become NaN."""
    result = np.full_like(values, np.nan)
    result[bars:] = values[: max(len(values) - bars, 0)]
    return result


def log_return(panel: Panel, bars: int) -> Floats:
    """Log return ln(close[t] / close[t - bars]): [T, N], NaN for the first `bars` bars of a ticker."""
    return momentum(panel, bars, 0)


def momentum(panel: Panel, first: int, last: int) -> Floats:
    """Momentum ln(close[t - last] / close[t - first]): [T, N]. Jegadeesh and Titman (1993); (252, 21): 12-1 months."""
    return over_own_bars(lambda log: lag(log, last) - lag(log, first), panel.tradable, np.log(panel.close))


def volatility(panel: Panel, bars: int) -> Floats:
    """Standard deviation (n - 1) of the last `bars` log returns: [T, N], per bar."""
    return over_own_bars(lambda log: rolling(log - lag(log, 1), bars, "std"), panel.tradable, np.log(panel.close))


def drawdown(panel: Panel, bars: int) -> Floats:
    """Drawdown close[t] / max(last `bars` closes, t included) - 1: [T, N], at most 0."""
    return over_own_bars(lambda close: close / rolling(close, bars, "max") - 1, panel.tradable, panel.close)


def trend(panel: Panel, bars: int) -> Floats:
    """Trend ln(close[t] / mean of the last `bars` closes, t included): [T, N].

    The distance from a moving average, as in the trading rules of Brock, Lakonishok and LeBaron (1992).
    """
    return over_own_bars(lambda close: np.log(close / rolling(close, bars, "mean")), panel.tradable, panel.close)


def rolling(values: Floats, bars: int, statistic: Literal["mean", "std", "max", "sum"]) -> Floats:
    """Statistic over the last `bars` rows of [T, N]; NaN until all of them are defined. std divides by n - 1."""
    result: Floats = getattr(pd.DataFrame(values).rolling(bars), statistic)().to_numpy()
    return result


def zscore(values: Floats) -> Floats:
    """Cross-sectional z-score of each bar, (x - mean) / standard deviation (n): [T, N] -> [T, N], NaN stays NaN.

    0 if a bar has a single defined value or no spread.
    """
    return over_rows(_zscore, values)


def _zscore(values: Floats) -> Floats:
    is_defined = np.isfinite(values)
    filled = np.where(is_defined, values, 0.0)
    count = np.maximum(is_defined.sum(1, keepdims=True), 1)
    deviations = np.where(is_defined, values - filled.sum(1, keepdims=True) / count, 0.0)
    std: Floats = np.sqrt((deviations**2).sum(1, keepdims=True) / count)
    spread = std > _RELATIVE_SPREAD * np.abs(filled).max(1, keepdims=True, initial=0.0)
    result: Floats = np.divide(deviations, std, out=np.zeros_like(deviations), where=spread)
    result[~is_defined] = np.nan
    return result


def rank(values: Floats) -> Floats:
    """Cross-sectional rank of each bar, scaled from -1 (lowest) to 1 (highest): [T, N] -> [T, N], NaN stays NaN.

    Ties share their average rank; a single defined value is 0.
    """
    return over_rows(_rank, values)


def _rank(values: Floats) -> Floats:
    ranks = pd.DataFrame(values).rank(axis=1, method="average").to_numpy()
    count = np.isfinite(values).sum(1, keepdims=True)
    result: Floats = (2 * ranks - count - 1) / np.maximum(count - 1, 1)
    return result


def sector_neutral(values: Floats, sectors: tuple[str, ...]) -> Floats:
    """Difference to the mean of the sector in each bar: [T, N] -> [T, N], NaN stays NaN.

    sectors: [N]. Industry-relative characteristics as in Asness, Porter and Stevens (2000).
    """
    result = np.full_like(values, np.nan)
    names = np.array(sectors)
    for sector in dict.fromkeys(sectors):
        members = values[:, names == sector]
        result[:, names == sector] = members - _mean(members, np.isfinite(members))
    return result


def market_return(panel: Panel, bars: int) -> Floats:
    """Log return over `bars` bars of the equal-weight portfolio, rebalanced every bar: [T, 1]."""
    returns = market_log_returns(panel)
    return over_own_bars(lambda series: rolling(series, bars, "sum"), np.isfinite(returns), returns)


def market_volatility(panel: Panel, bars: int) -> Floats:
    """Standard deviation (n - 1) of the last `bars` log returns of the equal-weight portfolio: [T, 1]."""
    returns = market_log_returns(panel)
    return over_own_bars(lambda series: rolling(series, bars, "std"), np.isfinite(returns), returns)


def breadth(panel: Panel, bars: int) -> Floats:
    """Fraction of the tickers with enough bars that close above the mean of their last `bars` closes: [T, 1]."""
    distance = over_own_bars(lambda close: close - rolling(close, bars, "mean"), panel.tradable, panel.close)
    return _mean(np.where(distance > 0, 1.0, 0.0), np.isfinite(distance))


def index_return(panel: Panel, bars: int) -> Floats:
    """Log return of the benchmark, ln(index[t] / index[t - bars]): [T, 1]."""
    close = _index(panel)
    return over_own_bars(lambda log: log - lag(log, bars), np.isfinite(close), np.log(close))


def index_volatility(panel: Panel, bars: int) -> Floats:
    """Standard deviation (n - 1) of the last `bars` log returns of the benchmark: [T, 1]."""
    close = _index(panel)
    return over_own_bars(lambda log: rolling(log - lag(log, 1), bars, "std"), np.isfinite(close), np.log(close))


def market_log_returns(panel: Panel) -> Floats:
    """[T, 1] log of 1 + the mean simple return of the tickers that have one; NaN where none has."""

    def of_rows(returns: Floats) -> Floats:
        return np.log1p(_mean(np.expm1(returns), np.isfinite(returns)))

    return over_rows(of_rows, log_return(panel, 1))


def _index(panel: Panel) -> Floats:
    """[T, 1] closes of the benchmark."""
    if panel.benchmark is None:
        raise FeatureError("index features need a panel with a benchmark; drop them or use a panel that has one")
    return panel.benchmark.close[:, None]


def _mean(values: Floats, is_defined: Bools) -> Floats:
    """Mean over the defined values of each row: [T, N] -> [T, 1], NaN where a row has none."""
    count = is_defined.sum(1, keepdims=True)
    total = np.where(is_defined, values, 0.0).sum(1, keepdims=True)
    mean: Floats = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return mean


# ---------------------------------------------------------------------- market model
#
# The log return of a ticker is alpha + beta * market return + residual (Sharpe 1963, "A simplified model for portfolio
# analysis"). The market is the equal-weight portfolio of the panel, rebalanced every bar. Over a gap, the market return
# covers the same span.


class _Fit(NamedTuple):
    """Least-squares fit over the last `bars` returns: beta and standard deviation (n - 2) of the residuals, [T, N]."""

    beta: Floats
    residual_std: Floats


def beta(panel: Panel, bars: int) -> Floats:
    """Least-squares slope of the last `bars` returns on the market returns, as in Fama and MacBeth (1973).

    NaN where the market did not move.
    """
    return _over_own_bars(panel, lambda price, market: _fit(price, market, bars).beta)


def idiosyncratic_volatility(panel: Panel, bars: int) -> Floats:
    """Standard deviation (n - 2) of the residuals of the last `bars` returns, per bar.

    Ang, Hodrick, Xing and Zhang (2006), with the market model instead of three factors.
    """
    return _over_own_bars(panel, lambda price, market: _fit(price, market, bars).residual_std)


def residual_momentum(panel: Panel, first: int, last: int) -> Floats:
    """Return in excess of beta times the market return, from bar t - first to t - last, over residual volatility.

    Blitz, Huij and Martens (2011), "Residual momentum", with the market model over the last `first` returns instead of
    three factors over 36 months. The intercept is part of the residual return: the residuals of a fit with an intercept
    add up to zero over its window. 0 where the ticker is the market.
    """

    def momentum_of(price: Floats, market: Floats) -> Floats:
        fit = _fit(price, market, first)
        excess = (lag(price, last) - lag(price, first)) - fit.beta * (lag(market, last) - lag(market, first))
        zero = np.where(np.isfinite(excess), 0.0, np.nan)
        return np.divide(excess, fit.residual_std, out=zero, where=fit.residual_std > 0)

    return _over_own_bars(panel, momentum_of)


def _over_own_bars(panel: Panel, function: Callable[[Floats, Floats], Floats]) -> Floats:
    """Apply a function of log closes and of the log level of the market, [T, N] each, to the bars of every ticker."""
    level = np.cumsum(np.nan_to_num(market_log_returns(panel)), axis=0)  # [T, 1]
    return over_own_bars(function, panel.tradable, np.log(panel.close), np.broadcast_to(level, panel.close.shape))


def _fit(price: Floats, market: Floats, bars: int) -> _Fit:
    """Fit to the last `bars` differences of log levels [T, N]; NaN until all are defined."""
    returns = price - lag(price, 1)
    market_returns = market - lag(market, 1)
    product_of_means = rolling(returns, bars, "mean") * rolling(market_returns, bars, "mean")
    covariance = rolling(returns * market_returns, bars, "mean") - product_of_means
    variance = _variance(returns, bars)
    market_variance = _variance(market_returns, bars)
    slope = np.divide(covariance, market_variance, out=np.full_like(covariance, np.nan), where=market_variance > 0)
    residual = variance - slope * covariance
    residual = np.where(residual > _RELATIVE_RESIDUAL * variance, residual, np.where(np.isnan(residual), np.nan, 0.0))
    return _Fit(slope, np.sqrt(residual * bars / (bars - 2)))


def _variance(values: Floats, bars: int) -> Floats:
    """Variance (n) over the last `bars` rows of [T, N]."""
    result: Floats = pd.DataFrame(values).rolling(bars).var(ddof=0).to_numpy()
    return result


# ---------------------------------------------------------------------- technical indicators


def indicator(
    panel: Panel, function: str, *parameters: float, columns: tuple[str, ...] = ("close",), output: int = 0
) -> Floats:
    """A technical indicator of FinRL, computed by TA-Lib on the bars of each ticker: [T, N].

    function, parameters: name of the function in TA-Lib and its parameters after the prices. columns: prices that it
    reads. output: number of the result, for functions that return several. NaN during the warm-up of TA-Lib. RSI and DX
    use the smoothing of Wilder; the standard deviation of Bollinger bands divides by n; MACD has values from bar 33 on,
    where its signal has. Raises SetupError without TA-Lib.
    """
    try:
        import talib
    except ImportError:
        raise SetupError("technical indicators need TA-Lib: pip install 'finrl-pod[indicators]'") from None
    compute = getattr(talib, function)
    counts = panel.tradable.sum(0)

    def indicator_of(*prices: Floats) -> Floats:
        result = np.full(panel.close.shape, np.nan)
        for asset, count in enumerate(counts):
            if count:
                series = compute(*(np.ascontiguousarray(price[:count, asset]) for price in prices), *parameters)
                result[:count, asset] = series[output] if isinstance(series, tuple) else series
        return result

    return over_own_bars(indicator_of, panel.tradable, *(getattr(panel, name) for name in columns))
