"""Tests of significance: probabilistic and deflated Sharpe ratio, mean return and alpha.

Sharpe ratios belong to one period and are never annualised; kurtosis is 3 for a normal variable. The variance of a
Sharpe ratio is taken at the ratio itself (Mertens 2002; Bailey and Lopez de Prado 2012).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.evaluate.intervals import Interval
from finrl_pod.evaluate.metrics import RISK_EPSILON, check_returns
from finrl_pod.prices import Floats

MIN_OBSERVATIONS = 20  # below this skewness and kurtosis are meaningless
EULER_MASCHERONI = 0.5772156649015329
MAX_AUTOCORRELATION = 0.97  # for the first-order approximation, whose bandwidth is infinite at 1
MAX_Z_SCORE = 8.0  # p-values beyond it are below the precision of a double
REGRESSION = 2  # parameters of a regression on one variable
_NORMAL = NormalDist()


class Moments(NamedTuple):
    """Moments of one-period returns. sharpe: mean over standard deviation (n - 1). observations: their number."""

    sharpe: float
    skewness: float = 0.0
    kurtosis: float = 3.0
    observations: int = MIN_OBSERVATIONS


# ---------------------------------------------------------------------- Sharpe ratio


def moments(returns: ArrayLike) -> Moments:
    """Moments of returns [T]; skewness and kurtosis without small-sample correction.

    Raises InputError for fewer than `MIN_OBSERVATIONS` returns, NaN, and constant returns.
    """
    values = check_returns(returns, MIN_OBSERVATIONS, "a Sharpe ratio test")
    deviations = values - values.mean()
    skewness, kurtosis = (float((deviations**k).mean() / float(values.std()) ** k) for k in (3, 4))
    return Moments(float(values.mean() / values.std(ddof=1)), skewness, kurtosis, len(values))


def sharpe_standard_error(sample: Moments) -> float:
    """Standard error of a Sharpe ratio: sqrt((1 - g3 SR + (g4 - 1)/4 SR^2) / (T - 1)) (Mertens 2002)."""
    return math.sqrt(_variance_factor(sample) / (sample.observations - 1))


def probabilistic_sharpe(sample: Moments, benchmark: float = 0.0) -> float:
    """Probabilistic Sharpe ratio (PSR) against `benchmark` (Bailey and Lopez de Prado 2012).

    One minus the p-value of the test that the true one-period ratio is at most the benchmark: how often a strategy with
    exactly the ratio of the benchmark would measure less. It is not the probability that the true ratio is higher.
    """
    return _NORMAL.cdf((sample.sharpe - benchmark) / sharpe_standard_error(sample))


def expected_maximum(trials: float) -> float:
    """Expected maximum of `trials` independent standard normal variables; 0 for a single one.

    (1 - g) Z(1 - 1/N) + g Z(1 - 1/(N e)), g the Euler-Mascheroni constant (Bailey and Lopez de Prado 2014).
    """
    if trials == 1:
        return 0.0
    upper = _NORMAL.inv_cdf(1 - 1 / trials)
    lower = _NORMAL.inv_cdf(1 - 1 / (trials * math.e))
    return (1 - EULER_MASCHERONI) * upper + EULER_MASCHERONI * lower


def deflated_sharpe(sample: Moments, variance: float, trials: float) -> float:
    """DSR: the PSR against the ratio expected from the best of `trials` trials without skill.

    variance: variance of the one-period Sharpe ratios of the trials.
    """
    return probabilistic_sharpe(sample, math.sqrt(variance) * expected_maximum(trials))


def minimum_track_record(sample: Moments, benchmark: float = 0.0, confidence: float = 0.95) -> float:
    """MinTRL: observations after which PSR(benchmark) reaches `confidence` if the moments stay the same.

    1 + (1 - g3 SR + (g4 - 1)/4 SR^2) (Z(confidence) / (SR - benchmark))^2; infinite for a ratio that does not exceed
    the benchmark (Bailey and Lopez de Prado 2012).
    """
    if sample.sharpe <= benchmark:
        return math.inf
    return 1 + _variance_factor(sample) * (_NORMAL.inv_cdf(confidence) / (sample.sharpe - benchmark)) ** 2


def _variance_factor(sample: Moments) -> float:
    """1 - g3 SR + (g4 - 1)/4 SR^2."""
    return 1 - sample.skewness * sample.sharpe + (sample.kurtosis - 1) / 4 * sample.sharpe**2


# ---------------------------------------------------------------------- mean return and alpha


def long_run_variance(series: ArrayLike) -> float:
    """Variance of sqrt(T) times the mean of a series [T]: Bartlett kernel, bandwidth of Andrews (1991).

        g(0) + 2 sum over l <= b of (1 - l / (b + 1)) g(l),    b = 1.1447 (4 r^2 T / (1 - r^2)^2)^(1/3)

    g are autocovariances, r the first autocorrelation. Without autocorrelation b is near 0 and the result near the
    sample variance. Raises InputError for fewer than 20 values, values that are not finite, and a constant series.
    """
    values = check_returns(series, MIN_OBSERVATIONS, "a test of a mean return")
    deviations = values - values.mean()
    bars = len(deviations)
    variance = float(deviations @ deviations) / bars
    first = float(
        np.clip(deviations[1:] @ deviations[:-1] / bars / variance, -MAX_AUTOCORRELATION, MAX_AUTOCORRELATION)
    )
    bandwidth = min(int(1.1447 * (4 * first**2 * bars / (1 - first**2) ** 2) ** (1 / 3)), bars - 1)
    for lag in range(1, bandwidth + 1):
        variance += 2 * (1 - lag / (bandwidth + 1)) * float(deviations[lag:] @ deviations[:-lag]) / bars
    return variance


class _StudentisedMean(NamedTuple):
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

    mean, error, a, freedom = _studentised_mean(series, parameters)
    t_statistic = mean / error
    statistic = t_statistic + a * t_statistic**2 / 3 + a**2 * t_statistic**3 / 27 + a / 6
    score = float(norm.isf(t.sf(abs(statistic), freedom)))
    return math.copysign(min(score, MAX_Z_SCORE), statistic)


def mean_interval(series: ArrayLike, level: float = 0.90, parameters: int = 1) -> Interval:
    """Mean of a series [T] and the two-sided interval of the means that `mean_z_score` does not reject.

    level: coverage; the end of a 90% interval is at 0 exactly if the one-sided p-value is 5%. Errors as `mean_z_score`.
    """
    from scipy.stats import t

    mean, error, a, freedom = _studentised_mean(series, parameters)
    quantile = float(t.ppf((1 + level) / 2, freedom))
    low, high = (mean - error * _inverse_transformation(q, a) for q in (quantile, -quantile))
    return Interval(mean, low, high)


def _studentised_mean(series: ArrayLike, parameters: int) -> _StudentisedMean:
    values = np.asarray(series, dtype=np.float64)
    freedom = len(values) - parameters
    error = math.sqrt(long_run_variance(values) / freedom)
    mean = float(values.mean())
    skewness = float(((values - mean) ** 3).mean() / values.std() ** 3)
    return _StudentisedMean(mean, error, skewness / math.sqrt(len(values)), freedom)


def _inverse_transformation(statistic: float, a: float) -> float:
    """The studentised mean that Hall's transformation maps to a statistic."""
    if abs(a) < 1e-9:
        return statistic - a / 6
    return 3 / a * (float(np.cbrt(1 + a * (statistic - a / 6))) - 1)


class AlphaSeries(NamedTuple):
    """Regression of active returns on the returns of a base. beta: [...], slope of the active returns.

    values: [T, ...], their mean is alpha, the intercept, and their long-run variance is the variance of its estimate.
    """

    values: Floats
    beta: Floats


def regression_slope(values: Floats, base: Floats) -> Floats:
    """Least-squares slope [...] of series [T, ...] on a base [T]; 0 for a base that does not vary."""
    deviations = base - float(base.mean())
    variance = float(deviations @ deviations) / len(base)
    if variance <= RISK_EPSILON**2:
        return np.zeros(values.shape[1:])
    return np.asarray(np.tensordot(deviations, values, (0, 0)) / (len(base) * variance), dtype=np.float64)


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
    deviations = returns - mean
    variance = float(deviations @ deviations) / len(returns)
    beta = regression_slope(values, returns)
    if variance <= RISK_EPSILON**2:
        return AlphaSeries(values, beta)
    alpha = values.mean(0) - beta * mean
    residuals = values - alpha - np.multiply.outer(returns, beta)
    influence = (1 - mean * deviations / variance).reshape(-1, *(1,) * (values.ndim - 1))
    return AlphaSeries(alpha + residuals * influence, beta)


def upper_tail(z_score: float) -> float:
    """Probability that a standard normal variable exceeds a z-score."""
    return 0.5 * math.erfc(z_score / math.sqrt(2))


def detectable_ratio(bars: int, bars_per_year: float, level: float, power: float = 0.5) -> float:
    """Annual information ratio (mean over standard deviation of active returns) that a test shows with a probability.

    At this ratio, `mean_z_score` of `bars` active returns without autocorrelation or skewness has a one-sided p-value
    of at most `level` with probability `power`: (t + z) sqrt(bars_per_year / (bars - 1)) with the quantiles t of
    Student's distribution with bars - 1 degrees of freedom at 1 - level and z of the normal distribution at `power`.
    """
    from scipy.stats import norm, t

    return float(t.isf(level, bars - 1) + norm.ppf(power)) * math.sqrt(bars_per_year / (bars - 1))
