"""Tests of a mean return and of an alpha that allow for autocorrelation, changing volatility and skewness."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.evaluate.intervals import Interval
from finrl_pod.evaluate.metrics import RISK_EPSILON, check_returns
from finrl_pod.prices import Floats

MIN_RETURNS = 20
MAX_AUTOCORRELATION = 0.97  # of the bandwidth's first-order approximation, which has no bandwidth at 1
MAX_Z_SCORE = 8.0  # p-values beyond it are below the precision of a double
REGRESSION = 2  # parameters of a regression on one variable


def long_run_variance(series: ArrayLike) -> float:
    """Variance of sqrt(T) times the mean of a series [T]: Bartlett kernel, bandwidth of Andrews (1991).

        g(0) + 2 sum over l <= b of (1 - l / (b + 1)) g(l),    b = 1.1447 (4 r^2 T / (1 - r^2)^2)^(1/3)

    g are autocovariances, r the first autocorrelation. Without autocorrelation b is near 0 and the result near the
    sample variance. Raises InputError for fewer than 20 values, values that are not finite, and a constant series.
    """
    values = check_returns(series, MIN_RETURNS, "a test of a mean return")
    centred = values - values.mean()
    bars = len(centred)
    variance = float(centred @ centred) / bars
    first = float(np.clip(centred[1:] @ centred[:-1] / bars / variance, -MAX_AUTOCORRELATION, MAX_AUTOCORRELATION))
    bandwidth = min(int(1.1447 * (4 * first**2 * bars / (1 - first**2) ** 2) ** (1 / 3)), bars - 1)
    for lag in range(1, bandwidth + 1):
        variance += 2 * (1 - lag / (bandwidth + 1)) * float(centred[lag:] @ centred[:-lag]) / bars
    return variance


class _Moments(NamedTuple):
    """Mean of a series, its standard error with the degrees of freedom, and skewness / sqrt(T)."""

    mean: float
    error: float
    skewness: float
    freedom: int


def mean_z_score(series: ArrayLike, parameters: int = 1) -> float:
    """Test statistic of the null hypothesis that the mean of a series [T] is 0, as a standard normal variable.

    The studentised mean t = sqrt(T - k) mean / sqrt(long-run variance), corrected for the skewness g of the series by
    the monotone transformation of Hall (1992), t + a t^2 / 3 + a^2 t^3 / 27 + a / 6 with a = g / sqrt(T), has Student's
    t distribution with T - k degrees of freedom. Returned is the standard normal quantile of the same probability,
    within -8 and 8. parameters: k, number of parameters that the series was estimated with, 1 for the mean alone.
    Errors of `long_run_variance`.
    """
    from scipy.stats import norm, t

    mean, error, a, freedom = _moments(series, parameters)
    studentised = mean / error
    statistic = studentised + a * studentised**2 / 3 + a**2 * studentised**3 / 27 + a / 6
    score = float(norm.isf(t.sf(abs(statistic), freedom)))
    return math.copysign(min(score, MAX_Z_SCORE), statistic)


def mean_interval(series: ArrayLike, level: float = 0.90, parameters: int = 1) -> Interval:
    """Mean of a series [T] and the two-sided interval of the means that `mean_z_score` does not reject.

    level: coverage; the end of a 90% interval is at 0 exactly if the one-sided p-value is 5%. Errors as `mean_z_score`.
    """
    from scipy.stats import t

    mean, error, a, freedom = _moments(series, parameters)
    quantile = float(t.ppf((1 + level) / 2, freedom))
    low, high = (mean - error * _inverse_transformation(q, a) for q in (quantile, -quantile))
    return Interval(mean, low, high)


def _moments(series: ArrayLike, parameters: int) -> _Moments:
    values = np.asarray(series, dtype=np.float64)
    freedom = len(values) - parameters
    error = math.sqrt(long_run_variance(values) / freedom)
    mean = float(values.mean())
    skewness = float(((values - mean) ** 3).mean() / values.std() ** 3)
    return _Moments(mean, error, skewness / math.sqrt(len(values)), freedom)


def _inverse_transformation(statistic: float, a: float) -> float:
    """The studentised mean that Hall's transformation maps to a statistic."""
    if abs(a) < 1e-9:
        return statistic - a / 6
    return 3 / a * (float(np.cbrt(1 + a * (statistic - a / 6))) - 1)


class AlphaSeries(NamedTuple):
    """Regression of active returns on the returns of a base. beta: [...], slope of the active returns.

    values: [T, ...], their mean is alpha, the intercept, and their long-run variance is that of its estimate.
    """

    values: Floats
    beta: Floats


def alpha_series(active: ArrayLike, base: ArrayLike) -> AlphaSeries:
    """Alpha of active returns [T, ...] over excess returns of a base [T], as series to which tests of a mean apply.

        active = alpha + beta base + e,    values_t = alpha + e_t (1 - m (base_t - m) / v)

    m and v are mean and variance of the base. The factor of e_t is the influence of bar t on the least-squares
    intercept, so the values vary as the intercept does, the error of beta included; a test of their mean (with
    `parameters` = 2) is the test of the intercept with autocorrelation-robust standard errors (Newey and West 1987).
    The beta to a base that does not vary is 0.
    """
    values = np.asarray(active, dtype=np.float64)
    returns = np.asarray(base, dtype=np.float64)
    mean = float(returns.mean())
    centred = returns - mean
    variance = float(centred @ centred) / len(returns)
    if variance <= RISK_EPSILON**2:
        return AlphaSeries(values, np.zeros(values.shape[1:]))
    beta = np.tensordot(centred, values, (0, 0)) / (len(returns) * variance)
    alpha = values.mean(0) - beta * mean
    residuals = values - alpha - np.multiply.outer(returns, beta)
    influence = (1 - mean * centred / variance).reshape(-1, *(1,) * (values.ndim - 1))
    return AlphaSeries(alpha + residuals * influence, np.asarray(beta))


def upper_tail(z_score: float) -> float:
    """Probability that a standard normal variable exceeds a z-score."""
    return 0.5 * math.erfc(z_score / math.sqrt(2))


def detectable_ratio(bars: int, bars_per_year: float, level: float, power: float = 0.5) -> float:
    """Annual information ratio (mean over standard deviation of active returns) that a test shows with a probability.

    That of `bars` active returns without autocorrelation or skewness at which `mean_z_score` has a one-sided p-value of
    at most `level` with probability `power`: (t + z) sqrt(bars_per_year / (bars - 1)) with the quantiles t of Student's
    distribution with bars - 1 degrees of freedom at 1 - level and z of the normal distribution at `power`.
    """
    from scipy.stats import norm, t

    return float(t.isf(level, bars - 1) + norm.ppf(power)) * math.sqrt(bars_per_year / (bars - 1))
