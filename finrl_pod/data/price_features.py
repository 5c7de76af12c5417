"""Features of prices: returns, momentum, volatility, ranks, the market model and FinRL's technical indicators.

Per-ticker features are [T, N], features of the market or index [T, 1]; NaN where undefined. Returns are logarithmic,
volatilities per bar (not annualised), and windows count the bars of a series, skipping gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
import torch
from numpy.lib.stride_tricks import sliding_window_view

from finrl_pod.data.blocks import over_columns, over_rows
from finrl_pod.errors import FeatureError, SetupError
from finrl_pod.tables import stored
from finrl_pod.types import Bools, Floats, Panel, Tensor

# A cross-sectional spread below this fraction of the largest value is rounding error.
_RELATIVE_SPREAD = 1e-12
# A variance below this fraction of the mean square is rounding error: the values are equal.
RELATIVE_VARIANCE = 1e-13
# A residual variance below this fraction of the variance of a ticker is rounding error: the ticker is the market.
_RELATIVE_RESIDUAL = 1e-10


def over_own_bars(function: Callable[..., Floats], valid: Bools, *columns: Floats) -> Floats:
    """Apply `function` to valid rows of each column as if they were consecutive: windows skip gaps.

    valid: [T, N] bool. columns: [T, N] float64 each. function: receives the columns with valid rows moved to the top,
    [T, N] with NaN below, and returns [T, N] or [T, N, K]. Returns its shape, NaN where `valid` is False. Row i of a
    moved column is the i-th bar of the ticker regardless of later ones, so causal functions stay causal. It computes
    each column by itself and is called with a few columns at a time, so that its temporary arrays stay small on long
    tables.
    """

    def of_block(valid: Bools, *columns: Floats) -> Floats:
        if valid.all():
            return function(*columns)
        missing = ~valid
        # Columns with a bar after a gap; the bars of the others are at the top already.
        moved = np.flatnonzero((valid[1:] & missing[:-1]).any(0))
        order = np.argsort(missing[:, moved], axis=0, kind="stable")

        def top_rows(column: Floats) -> Floats:
            rows = np.where(valid, column, np.nan)
            rows[:, moved] = rows[order, moved]
            return rows

        result = function(*map(top_rows, columns))
        result[order, moved] = result[:, moved]
        np.copyto(result, np.nan, where=missing.reshape(*missing.shape, *(1,) * (result.ndim - 2)))
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

    def momentum_of(close: Floats) -> Floats:
        log = np.log(close)
        return lag(log, last) - lag(log, first)

    return over_own_bars(momentum_of, panel.tradable, panel.close)


def volatility(panel: Panel, bars: int) -> Floats:
    """Standard deviation (n - 1) of the last `bars` log returns: [T, N], per bar."""

    def volatility_of(close: Floats) -> Floats:
        log = np.log(close)
        return rolling(log - lag(log, 1), bars, "std")

    return over_own_bars(volatility_of, panel.tradable, panel.close)


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
    if statistic == "max":
        return _over_windows(np.maximum, values, bars)
    if statistic == "std":
        return np.sqrt(_variance(values, bars)[0] * bars / (bars - 1))
    total = _over_windows(np.add, values, bars)
    return total / bars if statistic == "mean" else total


def _over_windows(combine: np.ufunc, values: Floats, bars: int) -> Floats:
    """An associative operation over the last `bars` rows of [T, N], for all columns at once; NaN like its inputs.

    A window is the end of one block of `bars` rows and the start of the next (van Herk 1992). Nothing is subtracted, so
    that a value depends on no row before its window.
    """
    count, columns = values.shape
    blocks = np.full((-(-count // bars), bars, columns), np.nan)
    blocks.reshape(-1, columns)[:count] = values
    starts = _accumulated(combine, blocks)
    ends = _accumulated(combine, blocks[:-1, :0:-1].copy())[:, ::-1]
    combine(ends, starts[1:, :-1], out=blocks[1:, :-1])
    blocks[:1, :-1] = np.nan
    blocks[:, -1] = starts[:, -1]
    return blocks.reshape(-1, columns)[:count]


def _accumulated(combine: np.ufunc, blocks: Floats) -> Floats:
    """The operation over the first rows of each block [B, bars, N]."""
    if combine is np.add:  # the same numbers as from numpy, in a quarter of the time
        return torch.from_numpy(blocks).cumsum(1).numpy()
    result: Floats = combine.accumulate(blocks, axis=1)
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


def market_statistic(panel: Panel, bars: int, statistic: Literal["sum", "std"]) -> Floats:
    """Sum or standard deviation (n - 1) of the last log returns of the equal-weight portfolio: [T, 1]."""
    returns = market_log_returns(panel)
    return over_own_bars(lambda series: rolling(series, bars, statistic), np.isfinite(returns), returns)


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
    """[T, 1] log of 1 + the mean simple return of the tickers that have one; NaN where none has.

    Computed once for a panel object.
    """
    if panel not in _market_returns:
        _market_returns[panel] = _computed_market_returns(panel)
    return _market_returns[panel]


def _computed_market_returns(panel: Panel) -> Floats:
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


# What several features of a panel object share. It is computed once, and goes with the object.
_market_returns: WeakKeyDictionary[Panel, Floats] = WeakKeyDictionary()
_market_models: WeakKeyDictionary[Panel, dict[int, _Fit]] = WeakKeyDictionary()


def beta(panel: Panel, bars: int) -> Floats:
    """Least-squares slope of the last `bars` returns on the market returns, as in Fama and MacBeth (1973).

    NaN where the market did not move.
    """
    return market_model(panel, bars).beta


def idiosyncratic_volatility(panel: Panel, bars: int) -> Floats:
    """Standard deviation (n - 2) of the residuals of the last `bars` returns, per bar.

    Ang, Hodrick, Xing and Zhang (2006), with the market model instead of three factors.
    """
    return market_model(panel, bars).residual_std


def residual_momentum(panel: Panel, first: int, last: int) -> Floats:
    """Return in excess of beta times the market return, from bar t - first to t - last, over residual volatility.

    Blitz, Huij and Martens (2011), "Residual momentum", with the market model over the last `first` returns instead of
    three factors over 36 months. The intercept is part of the residual return: the residuals of a fit with an intercept
    add up to zero over its window. 0 where the ticker is the market.
    """

    def momentum_of(close: Floats, market: Floats, beta: Floats, residual_std: Floats) -> Floats:
        price = np.log(close)
        excess = (lag(price, last) - lag(price, first)) - beta * (lag(market, last) - lag(market, first))
        zero = np.where(np.isfinite(excess), 0.0, np.nan)
        return np.divide(excess, residual_std, out=zero, where=residual_std > 0)

    return over_own_bars(momentum_of, panel.tradable, panel.close, _market_level(panel), *market_model(panel, first))


def market_model(panel: Panel, bars: int) -> _Fit:
    """The fit of every ticker, computed once for a panel object."""
    models = _market_models.setdefault(panel, {})
    if bars not in models:
        fits = over_own_bars(partial(_fit, bars=bars), panel.tradable, panel.close, _market_level(panel))
        models[bars] = _Fit(stored(fits[..., 0]), stored(fits[..., 1]))
    return models[bars]


def _market_level(panel: Panel) -> Floats:
    """Log level of the market, the same [T, N] for all tickers."""
    level = np.cumsum(np.nan_to_num(market_log_returns(panel)), axis=0)  # [T, 1]
    return np.broadcast_to(level, panel.close.shape)


def _fit(close: Floats, market: Floats, bars: int) -> Floats:
    """Beta and residual standard deviation [T, N, 2] of the last `bars` log returns. market: log levels [T, N].

    NaN until all of them are defined.
    """
    price = np.log(close)
    if not market.strides[1]:  # the same for all tickers
        market = market[:, :1]
    returns = price - lag(price, 1)
    market_returns = market - lag(market, 1)
    variance, mean = _variance(returns, bars)
    market_variance, market_mean = _variance(market_returns, bars)
    covariance = rolling(returns * market_returns, bars, "mean") - mean * market_mean
    slope = np.divide(covariance, market_variance, out=np.full_like(covariance, np.nan), where=market_variance > 0)
    residual = variance - slope * covariance
    residual = np.where(residual > _RELATIVE_RESIDUAL * variance, residual, np.where(np.isnan(residual), np.nan, 0.0))
    return np.stack([slope, np.sqrt(residual * bars / (bars - 2))], -1)


def _variance(values: Floats, bars: int) -> tuple[Floats, Floats]:
    """Variance (n) and mean over the last `bars` rows of [T, N]."""
    mean_square = rolling(values * values, bars, "mean")
    mean = rolling(values, bars, "mean")
    variance = mean_square - mean**2
    return np.where(variance <= RELATIVE_VARIANCE * mean_square, 0.0, variance), mean


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


# ---------------------------------------------------------------------- turbulence

# A ticker needs this fraction of the returns in the window to be included.
_MIN_FRACTION = 0.5
# Eigenvalues of the correlation matrix below this fraction of the largest are dropped.
_RCOND = 1e-10
# If the smallest Cholesky pivot (squared: a conditional variance) is above this, no eigenvalue is dropped.
_SAFE_PIVOT = 1e-4
# Elements of a block of windows in memory (16 MiB).
_BLOCK = 2**21


def turbulence(panel: Panel, window: int = 252) -> Floats:
    """Turbulence (y - m)' S^-1 (y - m) of each bar: [T] float64, NaN for the first `window` returns.

    y: simple returns of bar t; m, S: mean and covariance of the `window` returns before it. Kritzman and Li (2010), not
    divided by the number of tickers, as in FinRL. A ticker is included at t if it has a return at t, at least half of
    the returns in the window, and a non-zero variance; NaN where none is. Missing returns in the window are set to the
    mean of the ticker, and its variance uses the existing returns. A (nearly) singular correlation matrix is inverted
    by a pseudo-inverse that drops eigenvalues below 1e-10 of the largest.
    """
    returns = over_own_bars(lambda close: close / lag(close, 1) - 1, panel.tradable, panel.close)
    bars, assets = returns.shape
    result = np.full(bars, np.nan)
    block = max(1, _BLOCK // (window * max(assets, 1)))
    # Bar 0 never has a return, so the first whole window is bars 1 to `window`.
    for first in range(window + 1, bars, block):
        last = min(first + block, bars)
        past = sliding_window_view(returns[first - window : last - 1], window, axis=0)  # [B, N, window]
        result[first:last] = _distances(past, returns[first:last])
    return result


def turbulent_bars(turbulence: Tensor | None, limit: float) -> Tensor | None:
    """[T] bool, True at bars whose turbulence [T] is above `limit`: there all positions are sold.

    NaN (warm-up) is never above. None if the rule is off: the limit is 0, or the market has no turbulence.
    Environments, their kernels, scoring and deployed agents all use this function.
    """
    return turbulence > limit if limit > 0 and turbulence is not None else None


def _distances(past: Floats, todays_returns: Floats) -> Floats:
    """Squared Mahalanobis distance of today [B, N] from past [B, N, W]: [B]."""
    is_known = np.isfinite(past)
    count = is_known.sum(-1)
    mean = np.where(is_known, past, 0.0).sum(-1) / np.maximum(count, 1)
    deviations = np.where(is_known, past - mean[..., None], 0.0)
    squares = (deviations**2).sum(-1)
    # The variance of a constant series is the rounding error of its mean.
    noise = count * (1e-14 * np.maximum(np.abs(mean), 1e-3)) ** 2
    is_included = (
        np.isfinite(todays_returns) & (count >= _MIN_FRACTION * past.shape[-1]) & (count > 1) & (squares > noise)
    )
    scale = np.where(is_included, np.sqrt(np.where(is_included, squares, 1.0)), np.inf)
    unit = deviations / scale[..., None]  # rows of length 1, or 0 for an excluded ticker
    correlation = unit @ unit.transpose(0, 2, 1)  # [B, N, N]
    diagonal = np.arange(todays_returns.shape[1])
    correlation[:, diagonal, diagonal] = 1.0
    # Standard deviation (n - 1) of the returns that exist.
    std = scale / np.sqrt(np.maximum(count - 1, 1))
    deviation = np.where(is_included, todays_returns - mean, 0.0) / std
    return np.where(is_included.any(-1), _quadratic_form(correlation, deviation, is_included), np.nan)


def _quadratic_form(correlation: Floats, deviation: Floats, is_included: Bools) -> Floats:
    """d' C^+ d for each of B bars. An excluded ticker has a unit row in C and 0 in d: it contributes 0."""
    # `cholesky_ex` reports failures per matrix: one bar never changes the arithmetic of another.
    factor, failure = torch.linalg.cholesky_ex(torch.from_numpy(correlation))
    pivot = factor.diagonal(dim1=-2, dim2=-1).amin(-1)
    safe = ((failure == 0) & (pivot > _SAFE_PIVOT)).numpy()
    result = np.empty(len(correlation))
    right = torch.from_numpy(deviation[safe]).unsqueeze(-1)
    solution = torch.linalg.solve_triangular(factor[torch.from_numpy(safe)], right, upper=False)
    result[safe] = (solution**2).sum((-2, -1)).numpy()
    for bar in np.flatnonzero(~safe):
        values, vectors = np.linalg.eigh(correlation[bar][np.ix_(is_included[bar], is_included[bar])])
        is_kept = values > _RCOND * values[-1]
        result[bar] = ((vectors.T @ deviation[bar][is_included[bar]])[is_kept] ** 2 / values[is_kept]).sum()
    return result
